"""The flight recorder on the border: rows of the last steps, and a trace of them."""

from typing import Any

from pydantic.alias_generators import to_camel

MAX_STEPS = 1024
PARTS = ("plan", "forward", "sample", "apply")


def rows(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the core (`Recorder.steps`, `Scheduler.describe`), camel-cased and rounded."""
    return [{to_camel(name): _rounded(value) for name, value in step.items()} for step in steps]


def chrome_trace(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Steps in the Trace Event Format, for chrome://tracing and Perfetto.

    Args:
        steps: of `rows`.

    Source: "Trace Event Format", sections "Complete Events" and "Counter Events".
    """
    events: list[dict[str, Any]] = []
    for step in steps:
        start_us = (step["plannedS"] - step["planMs"] / 1e3) * 1e6
        total_us = sum(step[f"{part}Ms"] for part in PARTS) * 1e3
        common = {"pid": 1, "tid": 1, "ph": "X"}
        events.append(
            {**common, "name": f"step {step['stepId']}", "ts": start_us, "dur": total_us}
            | {"args": step}
        )
        events.append(
            {"pid": 1, "ph": "C", "name": "requests", "ts": start_us}
            | {"args": {"running": step["numRunning"], "waiting": step["numWaiting"]}}
        )
        for part in PARTS:
            duration_us = step[f"{part}Ms"] * 1e3
            events.append({**common, "name": part, "ts": start_us, "dur": duration_us, "tid": 2})
            start_us += duration_us
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value

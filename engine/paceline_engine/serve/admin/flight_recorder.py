"""The flight recorder on the border: rows of the last steps, a trace of them, a recording."""

import math
from typing import Any

from pydantic.alias_generators import to_camel

from paceline_engine.core.live_settings import SettingsState
from paceline_engine.core.request_log import RECORDING_VERSION
from paceline_engine.serve.step.engine_client import EngineInfo

MAX_STEPS = 1024
PARTS = ("plan", "queued", "forward", "sample", "apply")


def rows(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the core (`Recorder.steps`, `Scheduler.describe`), camel-cased and rounded."""
    return [{to_camel(name): _rounded(value) for name, value in step.items()} for step in steps]


def chrome_trace(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Steps in the Trace Event Format, for chrome://tracing and Perfetto.

    A step that was planned while another one ran has its wait among its parts, and lies in a lane
    beside its neighbours', since spans of one lane must not overlap.

    Args:
        steps: of `rows`.

    Source: "Trace Event Format", sections "Complete Events" and "Counter Events".
    """
    events: list[dict[str, Any]] = []
    for step in steps:
        start_us = (step["plannedS"] - step["planMs"] / 1e3) * 1e6
        parts = [part for part in PARTS if part != "queued" or step["queuedMs"]]
        total_us = sum(step[f"{part}Ms"] for part in parts) * 1e3
        lane = 2 * (step["stepId"] % 2) if step["queuedMs"] else 0
        common = {"pid": 1, "tid": 1 + lane, "ph": "X"}
        events.append(
            {**common, "name": f"step {step['stepId']}", "ts": start_us, "dur": total_us}
            | {"args": step}
        )
        events.append(
            {"pid": 1, "ph": "C", "name": "requests", "ts": start_us}
            | {"args": {"running": step["numRunning"], "waiting": step["numWaiting"]}}
        )
        for part in parts:
            duration_us = step[f"{part}Ms"] * 1e3
            span = {"name": part, "ts": start_us, "dur": duration_us, "tid": 2 + lane}
            events.append(common | span)
            start_us += duration_us
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def recording(
    found: dict[str, dict[str, list[Any]]], info: EngineInfo, state: SettingsState
) -> dict[str, Any]:
    """A recording as it is downloaded; `sim.recording` reads it.

    Args:
        found: of `Recorder.recording`.
        info: what ran.
        state: its settings. Rows of an older generation ran under others, which are not known.
    """
    return {
        "version": RECORDING_VERSION,
        "model": info.model,
        "settings": state.settings.on_border(),
        "generation": state.generation,
        "limits": {
            "numBlocks": info.num_blocks,
            "blockSize": info.block_size,
            "maxModelLen": info.max_model_len,
            "vocabSize": info.vocab_size,
        },
    } | {
        part: {to_camel(name): [_json(value) for value in values] for name, values in rows.items()}
        for part, rows in found.items()
    }


def _json(value: Any) -> Any:
    """JSON has no NaN: a moment that never came is null."""
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value

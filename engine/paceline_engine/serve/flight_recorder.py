"""The flight recorder: what the last steps did and where their time went."""

from collections import deque
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_camel

CAPACITY = 1024
PARTS = ("plan", "forward", "sample", "apply")


@dataclass(slots=True, kw_only=True)
class StepEntry:
    """One step. A mutable slots class: one is made per step at full rate.

    Attributes:
        start_s: monotonic seconds when planning began.
        prefill_tokens, decode_tokens, draft_tokens: computed tokens by kind.
        blocks_active, blocks_cached, blocks_free: after the step; held ones count as active.
        predicted_ms: forward and sample together, as estimated before the step.
        host_ms, device_ms: as the runner says.
        error: why the step failed; empty when it did not.
    """

    step_id: int
    start_s: float
    num_rows: int
    prefill_tokens: int
    decode_tokens: int
    draft_tokens: int
    num_running: int
    num_waiting: int
    num_preemptions: int
    blocks_active: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    predicted_ms: float = 0.0
    plan_ms: float = 0.0
    forward_ms: float = 0.0
    sample_ms: float = 0.0
    apply_ms: float = 0.0
    host_ms: float = 0.0
    device_ms: float = 0.0
    error: str = ""


_FIELDS = tuple((name, to_camel(name)) for name in StepEntry.__dataclass_fields__)


class FlightRecorder:
    """The last steps in memory; mutable, owned by the step loop."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._entries: deque[StepEntry] = deque(maxlen=capacity)

    def add(self, entry: StepEntry) -> None:
        """Keep one more, drop the oldest when full."""
        self._entries.append(entry)

    def last(self, limit: int) -> list[dict[str, Any]]:
        """Camel-cased rows of the last steps, oldest first; `limit` 0 gives all."""
        entries = list(self._entries)
        return [
            {camel: _rounded(getattr(entry, name)) for name, camel in _FIELDS}
            for entry in (entries[-limit:] if limit else entries)
        ]


def chrome_trace(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Steps in the Trace Event Format, for chrome://tracing and Perfetto.

    Args:
        steps: rows of `FlightRecorder.last`.

    Source: "Trace Event Format", section "Complete Events" and "Counter Events".
    """
    events: list[dict[str, Any]] = []
    for step in steps:
        start_us = step["startS"] * 1e6
        total_us = sum(step[f"{part}Ms"] for part in PARTS) * 1e3
        common = {"pid": 1, "tid": 1, "ph": "X"}
        events.append(
            {**common, "name": f"step {step['stepId']}", "ts": start_us, "dur": total_us}
            | {"args": step}
        )
        for part in PARTS:
            duration_us = step[f"{part}Ms"] * 1e3
            events.append({**common, "name": part, "ts": start_us, "dur": duration_us, "tid": 2})
            start_us += duration_us
        events.append(
            {"pid": 1, "ph": "C", "name": "requests", "ts": step["startS"] * 1e6}
            | {"args": {"running": step["numRunning"], "waiting": step["numWaiting"]}}
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value

"""Verdicts as `status.conditions` has them, and the events of what has changed."""

from collections.abc import Iterable, Mapping
from typing import Any

from paceline_operator.decide.actions import Event
from paceline_operator.decide.conditions import C, Verdict
from paceline_operator.decide.failures import cut
from paceline_operator.decide.reasons import Reason
from paceline_operator.decide.rollout import Stage
from paceline_operator.resources import objects

LONGEST_MESSAGE = 4096
"""As the schema has it; the server refuses a longer one together with the whole status."""


def as_status(
    made: Iterable[Verdict], before: Iterable[Mapping[str, Any]], generation: int, now: float
) -> list[dict[str, Any]]:
    """As `status.conditions` has them; the time is that of the last change of the status."""
    old = {item.get("type"): item for item in before}
    return [
        {
            "type": verdict.type.value,
            "status": verdict.status.value,
            "reason": str(verdict.reason),
            "message": cut(verdict.message, LONGEST_MESSAGE),
            "lastTransitionTime": _since(old.get(verdict.type.value), verdict, now),
            "observedGeneration": generation,
        }
        for verdict in made
    ]


def events(made: Iterable[Verdict], before: Iterable[Mapping[str, Any]]) -> tuple[Event, ...]:
    """Events for transitions: a condition whose status or reason has changed, each reason once."""
    old = {item.get("type"): (item.get("status"), item.get("reason")) for item in before}
    told: dict[str, Event] = {}
    for verdict in made:
        was = old.get(verdict.type.value)
        if verdict.type not in _TOLD or was == (verdict.status.value, str(verdict.reason)):
            continue
        if was is None and not _is_news(verdict):
            continue
        if was is not None and _is_on_the_way(str(was[1]), str(verdict.reason)):
            continue
        event = Event(
            type="Warning" if verdict.is_bad else "Normal",
            reason=str(verdict.reason),
            message=verdict.message,
        )
        told.setdefault(event.reason, event)
    return tuple(told.values())


_ON_THE_WAY = (
    frozenset({Stage.ROLLING_OUT, Stage.WAITING_FOR_IDLE, Stage.DRAINING}),
    frozenset({Reason.CHILDREN_PENDING, Reason.SCALED_TO_ZERO}),
)
"""Reasons that alternate for each pod, or for each child; no event tells one after the other."""
_TOLD = frozenset({C.READY, C.PROGRESSING, C.CONFIG_VALID, C.METRICS_AVAILABLE, C.DEGRADED})


def _is_on_the_way(was: str, reason: str) -> bool:
    return any({was, reason} <= steps for steps in _ON_THE_WAY)


def _is_news(verdict: Verdict) -> bool:
    """Whether the first visit has to tell it: not what is so before anything happened."""
    return verdict.is_bad or verdict.type is C.PROGRESSING


def _since(old: Mapping[str, Any] | None, verdict: Verdict, now: float) -> str:
    if old is not None and old.get("status") == verdict.status.value:
        kept = objects.text(old, "lastTransitionTime")
        if kept:
            return kept
    return objects.timestamp(now)

"""The state as `status.tuning` has it, and back. What cannot be read is a lost memory, no error."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from paceline_crds import status_tuning as crd
from paceline_crds.settings import border_names
from paceline_crds.status_tuning import TuningStatus
from paceline_operator.decide.tuning import arm as arms
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.quantum import text
from paceline_operator.decide.tuning.state import (
    Advice,
    Ban,
    Change,
    Ended,
    Outcome,
    Phase,
    Spent,
    State,
)
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.decide.tuning.watch import Seen
from paceline_operator.resources import objects

_SUMS = {to_camel(name): name for name in arms.SUMS}
_ORDER = list(Symptom)


def encode(state: State) -> dict[str, Any]:
    """As JSON has it; what is empty is left out."""
    made = {
        "state": str(state.mood),
        "reason": state.reason,
        "message": state.message,
        "symptoms": [_symptom(item) for item in state.symptoms],
        "current": _change(state.current) if state.current else None,
        "overlay": [
            item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in state.overlay
        ],
        "tabu": [_ban(item) for item in state.bans],
        "budget": _spent(state.spent) if state.spent.day else None,
        "history": [_ended(item) for item in state.history],
        "recommendations": [
            _filled({"symptom": item.symptom.value, "text": item.text, "change": item.change})
            for item in state.advice
        ],
        "sequence": state.sequence,
        "seenUntil": _moment(state.seen_until),
        "servingPods": state.serving,
        "servingSince": _moment(state.serving_since),
        "stoppedSince": _moment(state.stopped_since),
        "lackOfMetrics": state.lack,
        "fingerprint": state.fingerprint,
        "baseline": _arm(state.baseline),
        "growing": _arm(state.growing),
    }
    return _filled(made)


def decode(status: Mapping[str, Any] | None) -> State:
    """The state of a status; a fresh one if there is none or it cannot be read."""
    if not status:
        return State()
    try:
        TuningStatus.model_validate_json(json.dumps(status))
        return _state(status)
    except (ValidationError, ValueError, KeyError):
        return State()


def _state(status: Mapping[str, Any]) -> State:
    current = objects.mapping(status, "current")
    budget = objects.mapping(status, "budget")
    return State(
        mood=objects.text(status, "state") or "Watching",
        reason=objects.text(status, "reason"),
        message=objects.text(status, "message"),
        symptoms=tuple(
            sorted(
                (_seen(item) for item in objects.items(status, "symptoms")),
                key=lambda item: _ORDER.index(item.symptom),
            )
        ),
        current=_read_change(current) if current else None,
        overlay=tuple(
            crd.OverlayEntry.model_validate_json(json.dumps(item))
            for item in objects.items(status, "overlay")
            if item.get("name") in border_names()
        ),
        bans=tuple(_read_ban(item) for item in objects.items(status, "tabu")),
        spent=Spent(
            day=objects.text(budget, "day"),
            live=objects.whole(budget, "liveChanges"),
            restart=objects.whole(budget, "restartChanges"),
            rollbacks=objects.whole(budget, "rollbacks"),
            reversals=objects.whole(budget, "reversals"),
        ),
        history=tuple(_read_ended(item) for item in objects.items(status, "history")),
        advice=tuple(
            Advice(
                symptom=Symptom(item["symptom"]),
                text=objects.text(item, "text"),
                change=objects.text(item, "change"),
            )
            for item in objects.items(status, "recommendations")
        ),
        sequence=objects.whole(status, "sequence"),
        seen_until=_second(status.get("seenUntil")),
        serving=objects.whole(status, "servingPods"),
        serving_since=_second(status.get("servingSince")),
        stopped_since=_second(status.get("stoppedSince")),
        lack=objects.text(status, "lackOfMetrics"),
        fingerprint=objects.text(status, "fingerprint"),
        baseline=_read_arm(objects.mapping(status, "baseline")),
        growing=_read_arm(objects.mapping(status, "growing")),
    )


def _filled(made: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in made.items() if value not in (None, "", [], {}, 0, False)}


def _moment(second: int) -> str:
    return objects.timestamp(second) if second else ""


def _second(value: Any) -> int:
    return int(objects.seconds(value) or 0)


def _numbers(values: Mapping[str, float]) -> dict[str, str]:
    return {name: text(value) for name, value in values.items()}


def _read_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _arm(arm: Arm) -> dict[str, Any] | None:
    if not arm.windows:
        return None
    sums = {name: text(getattr(arm, own)) for name, own in _SUMS.items() if getattr(arm, own)}
    return {
        "start": _moment(arm.start),
        "end": _moment(arm.end),
        "windows": arm.windows,
        "sums": sums,
    }


def _read_arm(status: Mapping[str, Any]) -> Arm:
    known = {item.name for item in fields(Arm)}
    sums: dict[str, Any] = {
        _SUMS[name]: float(value)
        for name, value in objects.mapping(status, "sums").items()
        if _SUMS.get(name) in known
    }
    return Arm(
        start=_second(status.get("start")),
        end=_second(status.get("end")),
        windows=objects.whole(status, "windows"),
        **sums,
    )


def _symptom(seen: Seen) -> dict[str, Any]:
    made = _filled(
        {
            "name": seen.symptom.value,
            "since": _moment(seen.since),
            "windows": seen.shown,
            "calm": seen.calm,
            "evidence": _numbers(seen.evidence),
        }
    )
    return made if seen.is_evaluated else {**made, "evaluated": False}


def _seen(status: Mapping[str, Any]) -> Seen:
    return Seen(
        symptom=Symptom(status["name"]),
        since=_second(status.get("since")),
        shown=objects.whole(status, "windows"),
        calm=objects.whole(status, "calm"),
        is_evaluated=status.get("evaluated") is not False,
        evidence=_read_numbers(objects.mapping(status, "evidence")),
    )


def _change(change: Change) -> dict[str, Any]:
    made = {
        "phase": change.phase.value,
        "symptom": change.symptom.value,
        "started": _moment(change.started),
        "phaseSince": _moment(change.phase_since),
        "previous": change.previous,
        "approved": change.is_approved,
        "loadBin": change.load_bin,
        "crashes": change.crashes,
        "reason": change.reason,
        "verdict": change.verdict,
        "baseline": _arm(change.baseline),
        "measured": _arm(change.measured),
    }
    return {**_named(change), **_filled(made)}


def _read_change(status: Mapping[str, Any]) -> Change:
    return Change(
        **_read_named(status),
        symptom=Symptom(status["symptom"]),
        phase=Phase(status["phase"]),
        started=_second(status.get("started")),
        phase_since=_second(status.get("phaseSince")),
        previous=objects.text(status, "previous"),
        is_approved=status.get("approved") is True,
        load_bin=objects.text(status, "loadBin"),
        crashes=objects.whole(status, "crashes"),
        reason=objects.text(status, "reason"),
        verdict=objects.text(status, "verdict"),
        baseline=_read_arm(objects.mapping(status, "baseline")),
        measured=_read_arm(objects.mapping(status, "measured")),
    )


def _named(change: Change | Ended) -> dict[str, str]:
    return {
        "id": change.id,
        "setting": change.setting,
        "before": change.before,
        "after": change.after,
    }


def _read_named(status: Mapping[str, Any]) -> dict[str, str]:
    return {name: objects.text(status, name) for name in ("id", "setting", "before", "after")}


def _ended(ended: Ended) -> dict[str, Any]:
    made = {
        "outcome": ended.outcome.value,
        "reason": ended.reason,
        "symptom": ended.symptom.value,
        "ended": _moment(ended.ended),
        "measuredBefore": _numbers(ended.measured_before),
        "measuredAfter": _numbers(ended.measured_after),
    }
    return {**_named(ended), **_filled(made)}


def _read_ended(status: Mapping[str, Any]) -> Ended:
    return Ended(
        **_read_named(status),
        symptom=Symptom(status["symptom"]),
        outcome=Outcome(status["outcome"]),
        reason=objects.text(status, "reason"),
        ended=_second(status.get("ended")),
        measured_before=_read_numbers(objects.mapping(status, "measuredBefore")),
        measured_after=_read_numbers(objects.mapping(status, "measuredAfter")),
    )


def _ban(ban: Ban) -> dict[str, Any]:
    return {
        "setting": ban.setting,
        "direction": ban.direction.value,
        "loadBin": ban.load_bin,
        "until": _moment(ban.until),
        "failures": ban.failures,
    }


def _read_ban(status: Mapping[str, Any]) -> Ban:
    return Ban(
        setting=objects.text(status, "setting"),
        direction=crd.Direction(status["direction"]),
        load_bin=objects.text(status, "loadBin"),
        until=_second(status.get("until")),
        failures=objects.whole(status, "failures"),
    )


def _spent(spent: Spent) -> dict[str, Any]:
    counts = {
        "liveChanges": spent.live,
        "restartChanges": spent.restart,
        "rollbacks": spent.rollbacks,
        "reversals": spent.reversals,
    }
    return {"day": spent.day, **_filled(counts)}

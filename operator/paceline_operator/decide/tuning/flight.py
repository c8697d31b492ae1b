"""A change from its start to its end: applied, settled, verified, kept or taken back."""

from dataclasses import replace
from enum import StrEnum

from paceline_crds.spec_tuning import TuningMode
from paceline_operator.decide.tuning import guards, ledger, verdict
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.guards import Stop
from paceline_operator.decide.tuning.moves import Move
from paceline_operator.decide.tuning.observation import Note, Observation
from paceline_operator.decide.tuning.state import Change, Outcome, Phase, State
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.decide.tuning.verdict import Judgement
from paceline_operator.resources import objects

AGREEMENT_S = 60
"""Pods that have not read a live change back by then refuse it."""
RESTART_S = 3600
ROLL_BACK_S = 900
"""A roll-back that is not in force by then has failed; pods may have to start again first."""

Turn = tuple[State, tuple[Note, ...]]


class Cause(StrEnum):
    """Why a change is taken back, beside the judgements of `verdict` and the guards' reasons."""

    CRASHED = "Crashed"
    OUT_OF_MEMORY = "OutOfMemory"
    ALARM = "Alarm"
    NOT_AGREED = "NotAgreed"
    NO_VERDICT = "NoVerdict"
    SPEC_CHANGED = "SpecChanged"
    MODE_CHANGED = "ModeChanged"


_FAILURES = frozenset(
    {
        Cause.CRASHED.value,
        Cause.OUT_OF_MEMORY.value,
        Cause.ALARM.value,
        Cause.NOT_AGREED.value,
        Cause.NO_VERDICT.value,
        Judgement.WORSE.value,
        Judgement.UNCLEAR.value,
    }
)
"""Causes that speak against the move itself."""


def draft(state: State, symptom: Symptom, move: Move, load_bin: str, now: int) -> Change:
    """The change that a move stands for."""
    previous = next((item.value for item in state.overlay if item.name == move.dial.name), "")
    number = state.sequence + 1
    return Change(
        id=f"{move.dial.name}-{move.after}-{number}",
        setting=move.dial.name,
        before=move.before,
        after=move.after,
        symptom=symptom,
        phase=Phase.PROPOSED,
        started=now,
        phase_since=now,
        previous=previous,
        load_bin=load_bin,
        baseline=state.baseline,
        reason=f"{symptom.value}: {move.dial.name} {move.before} -> {move.after}",
    )


def propose(state: State, change: Change) -> Turn:
    """Ask a person."""
    note = Note(reason="ChangeProposed", message=change.reason, asks_for=change.id)
    return replace(state, current=change, sequence=state.sequence + 1), (note,)


def start(state: State, change: Change, seen: Observation, now: int) -> Turn:
    """The intent: it stands in status before any pod hears of it."""
    dial = seen.dials[change.setting]
    entry = dial.entry(change.after, objects.timestamp(now))
    crashes = 0 if ledger.is_restart(change.setting, seen.policy) else seen.fleet.crashes
    change = replace(change, phase=Phase.APPLYING, phase_since=now, crashes=crashes)
    is_new = state.current is None
    state = replace(
        ledger.started(state, change, seen.policy),
        current=change,
        overlay=ledger.with_entry(state.overlay, entry),
        sequence=state.sequence + is_new,
    )
    return state, (Note(reason="ChangeStarted", message=change.reason),)


def advance(state: State, change: Change, seen: Observation, stop: Stop | None, now: int) -> Turn:
    """The next phase of a change in flight, if it is time."""
    if change.phase is Phase.ROLLING_BACK:
        return _roll_back(state, change, seen, now)
    cause = _interrupted(state, change, seen, stop, now)
    if cause is not None:
        return take_back(state, change, cause[0], cause[1], now)
    if seen.is_paused:
        return state, ()
    if change.phase is Phase.APPLYING:
        return _apply(state, change, seen, now)
    if change.phase is Phase.SETTLING:
        if now - change.phase_since < seen.policy.window_s:
            return state, ()
        change = replace(change, phase=Phase.VERIFYING, phase_since=now, measured=Arm())
        return replace(state, current=change), ()
    return _verify(state, change, seen, now)


def take_back(state: State, change: Change, cause: str, why: str, now: int) -> Turn:
    """The overlay from before is wanted again."""
    told = f"{change.setting} goes back from {change.after} to {change.before}: {why}"
    change = replace(change, phase=Phase.ROLLING_BACK, phase_since=now, verdict=cause, reason=why)
    state = replace(state, current=change, overlay=ledger.restored(state.overlay, change))
    return state, (Note(reason="RollingBack", message=told, is_bad=True),)


def _interrupted(
    state: State, change: Change, seen: Observation, stop: Stop | None, now: int
) -> tuple[str, str] | None:
    fleet, policy = seen.fleet, seen.policy
    if fleet.is_out_of_memory and fleet.crashes > change.crashes:
        return Cause.OUT_OF_MEMORY, "a pod ran out of memory"
    if fleet.crashes > change.crashes:
        return Cause.CRASHED, "a pod crashed"
    if alarm := verdict.alarm(change.baseline, change.measured, policy):
        return Cause.ALARM, alarm
    if seen.fingerprint != state.fingerprint:
        return Cause.SPEC_CHANGED, "spec was changed while it was being measured"
    if policy.mode is TuningMode.OBSERVE or (
        policy.mode is TuningMode.PROPOSE and not change.is_approved
    ):
        return Cause.MODE_CHANGED, f"tuning.mode is {policy.mode.value}"
    if stop is not None and stop.reason in {"Paused", "Frozen", "OperatorFrozen"}:
        return stop.reason, stop.message
    if state.stopped_since and now - state.stopped_since > guards.FREEZE_S and stop is not None:
        return stop.reason, f"{stop.message}, for more than {guards.FREEZE_S // 60} minutes"
    return None


def _apply(state: State, change: Change, seen: Observation, now: int) -> Turn:
    restarts = ledger.is_restart(change.setting, seen.policy)
    if seen.fleet.is_agreed and not (restarts and seen.fleet.is_rolling_out):
        change = replace(change, phase=Phase.SETTLING, phase_since=now)
        return replace(state, current=change), ()
    limit = RESTART_S if restarts else AGREEMENT_S
    if now - change.phase_since > limit:
        why = f"not every pod had it in force after {limit} s"
        return take_back(state, change, Cause.NOT_AGREED, why, now)
    return state, ()


def _verify(state: State, change: Change, seen: Observation, now: int) -> Turn:
    policy = seen.policy
    found = verdict.judge(change.symptom, change.baseline, change.measured, policy)
    is_late = now - change.phase_since > policy.max_arm_s
    if found.judgement is Judgement.BETTER:
        return _keep(state, change, found.text, seen, now)
    if found.judgement is Judgement.WORSE:
        return take_back(state, change, Judgement.WORSE, found.text, now)
    if found.judgement is Judgement.UNCLEAR:
        if verdict.is_drawn_out(change.measured, policy) or is_late:
            return take_back(state, change, Judgement.UNCLEAR, found.text, now)
    elif is_late:
        why = f"no verdict within {policy.max_arm_s // 60} minutes: {found.text}"
        return take_back(state, change, Cause.NO_VERDICT, why, now)
    elif found.judgement is Judgement.OTHER_LOAD:
        return replace(state, current=replace(change, measured=Arm())), ()
    return state, ()


def _keep(state: State, change: Change, text: str, seen: Observation, now: int) -> Turn:
    told = f"{change.setting} {change.before} -> {change.after} stays: {text}"
    state = ledger.accepted(state, change, text, seen.policy, now)
    return state, (Note(reason="ChangeAccepted", message=told),)


def _roll_back(state: State, change: Change, seen: Observation, now: int) -> Turn:
    if seen.is_paused:
        # Nothing is pushed meanwhile: the time to do it begins when work goes on.
        return replace(state, current=replace(change, phase_since=now)), ()
    restarts = ledger.is_restart(change.setting, seen.policy)
    is_failure = change.verdict in _FAILURES
    if seen.fleet.is_agreed and not (restarts and seen.fleet.is_rolling_out):
        state = ledger.ended(
            *(state, change, Outcome.ROLLED_BACK, change.reason, seen.policy, now),
            is_failure=is_failure,
        )
        told = f"{change.setting} is {change.before} again: {change.reason}"
        return state, (Note(reason="ChangeRolledBack", message=told, is_bad=True),)
    if now - change.phase_since > (RESTART_S if restarts else ROLL_BACK_S):
        state = ledger.ended(
            *(state, change, Outcome.ROLLBACK_FAILED, change.reason, seen.policy, now),
            is_failure=is_failure,
        )
        told = f"{change.setting} could not be set back to {change.before} on every pod"
        return state, (Note(reason="RollbackFailed", message=told, is_bad=True),)
    return state, ()

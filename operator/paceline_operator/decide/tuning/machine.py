"""`step(state, observation, now)`: the tuner's whole behaviour, as a pure state machine.

The state that comes back has to be in status before anything is touched: its overlay is what pods
are told. A step that is repeated, or one that never came to be written, does no harm: windows that
were seen are not counted twice, and everything else follows from the state and what is observed.
"""

from dataclasses import replace

from paceline_crds.spec_tuning import TuningMode
from paceline_operator.decide.tuning import (
    absorb,
    advice,
    diagnosis,
    flight,
    guards,
    ledger,
    watch,
)
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.guards import Stop
from paceline_operator.decide.tuning.observation import Note, Observation
from paceline_operator.decide.tuning.state import Change, Mood, Outcome, Phase, State
from paceline_operator.decide.tuning.symptom import Symptom

Turn = tuple[State, tuple[Note, ...]]
_TAKES_TIME = frozenset({Phase.APPLYING, Phase.ROLLING_BACK})


def step(state: State, seen: Observation, now: float) -> Turn:
    """One turn.

    Args:
        state: as status has it.
        seen: what was observed.
        now: seconds since the epoch; never runs behind what the state knows.

    Returns:
        The next state, and what happened.
    """
    moment = max(int(now), state.newest())
    if seen.policy.mode is TuningMode.OFF:
        return _off(state, seen, moment)
    state = ledger.today(state, moment)
    before = watch.held(state.symptoms)
    state, notes = _follow_overlay(state, seen, moment)
    state = absorb.absorbed(absorb.scaled(state, seen, moment), seen)
    told = [*notes, *_news(before, state)]
    stop = guards.first(state, seen, moment)
    state = _timed(state, stop, moment)
    if state.current is not None and state.current.is_in_flight:
        state, notes = flight.advance(state, state.current, seen, stop, moment)
        told += notes
        if any(note.reason == "RollbackFailed" for note in notes):
            state = replace(state, mood=Mood.HALTED, fingerprint=seen.fingerprint)
    state = _follow_spec(state, seen)
    if state.current is None or not state.current.is_in_flight:
        state, notes = _decide(state, seen, stop, moment)
        told += notes
    else:
        state = _in_flight(state, state.current)
    return replace(state, advice=advice.of(state, seen, moment)), tuple(told)


def _off(state: State, seen: Observation, now: int) -> Turn:
    """Nothing is tuned: the overlay goes, and with it a change in flight."""
    notes: tuple[Note, ...] = ()
    if state.current is not None and state.current.is_in_flight:
        why = "tuning.mode is Off"
        state = ledger.ended(
            *(state, state.current, Outcome.ROLLED_BACK, why, seen.policy, now), is_failure=False
        )
        notes = (Note(reason="ChangeRolledBack", message=why),)
    cleared = State(
        mood=Mood.OFF,
        reason="Off",
        message="spec.tuning.mode is Off",
        history=state.history,
        bans=state.bans,
        spent=state.spent,
        sequence=state.sequence,
        seen_until=state.seen_until,
    )
    return cleared, notes


def _follow_overlay(state: State, seen: Observation, now: int) -> Turn:
    """Entries that no longer hold are gone; a change that stood on one has ended."""
    kept = tuple(item for item in state.overlay if item.name in seen.overlay_kept)
    if len(kept) == len(state.overlay):
        return state, ()
    state = replace(state, overlay=kept)
    change = state.current
    if change is None or change.phase in {Phase.PROPOSED, Phase.ROLLING_BACK}:
        return state, ()
    if any(item.name == change.setting for item in kept):
        return state, ()
    why = f"spec decides {change.setting} now"
    state = ledger.ended(
        *(state, change, Outcome.SUPERSEDED, why, seen.policy, now), is_failure=False
    )
    return state, (Note(reason="ChangeSuperseded", message=why),)


def _follow_spec(state: State, seen: Observation) -> State:
    """What was measured under another spec is no ground for a comparison."""
    if state.fingerprint == seen.fingerprint:
        return state
    if state.current is not None and state.current.is_in_flight:
        return state  # the change is taken back first
    mood = Mood.WATCHING if state.mood == Mood.HALTED else state.mood
    return replace(
        state, fingerprint=seen.fingerprint, baseline=Arm(), growing=Arm(), mood=mood, current=None
    )


def _timed(state: State, stop: Stop | None, now: int) -> State:
    """Since when it is frozen; a change on its way to the pods has time limits of its own."""
    is_on_the_way = state.current is not None and state.current.phase in _TAKES_TIME
    if stop is None or is_on_the_way:
        return replace(state, stopped_since=0) if state.stopped_since else state
    return state if state.stopped_since else replace(state, stopped_since=now)


def _decide(state: State, seen: Observation, stop: Stop | None, now: int) -> Turn:
    if state.mood == Mood.HALTED:
        text = "a roll-back failed; check the pods, then change spec.tuning to go on"
        return _said(state, Mood.HALTED, "RollbackFailed", text), ()
    state, notes = _proposal(state, seen, stop, now)
    if state.current is not None or notes:
        return state, notes
    held = [item.symptom for item in state.symptoms if item.holds]
    if stop is not None:
        return _said(state, Mood.FROZEN, stop.reason, stop.message), ()
    if not held:
        return _said(state, Mood.WATCHING, "NoSymptom", "nothing is wrong"), ()
    if seen.policy.mode is TuningMode.OBSERVE:
        return _said(state, Mood.WATCHING, held[0].value, "tuning.mode is Observe"), ()
    waits = guards.patience(state, seen, now)
    if waits is not None:
        return _said(state, Mood.WATCHING, waits.reason, waits.message), ()
    return _act(state, seen, held, now)


def _act(state: State, seen: Observation, held: list[Symptom], now: int) -> Turn:
    choice = diagnosis.choose(state, seen, now)
    if choice.change is None:
        if choice.is_exhausted:
            text = f"{held[0].value}: what may be turned for it is at its bound"
            is_new = state.mood != Mood.EXHAUSTED
            told = (Note(reason="Exhausted", message=text),) if is_new else ()
            return _said(state, Mood.EXHAUSTED, held[0].value, text), told
        text = f"{held[0].value}: nothing that may be turned now helps"
        return _said(state, Mood.WATCHING, held[0].value, text), ()
    if guards.mode_of(state, seen.policy) is TuningMode.PROPOSE:
        state, notes = flight.propose(state, choice.change)
    else:
        state, notes = flight.start(state, choice.change, seen, now)
    return _in_flight(state, state.current), notes


def _proposal(state: State, seen: Observation, stop: Stop | None, now: int) -> Turn:
    """What becomes of a proposal: approved, rejected, withdrawn, or still waiting."""
    change = state.current
    if change is None:
        return state, ()
    if seen.reject == change.id:
        state = ledger.ended(
            *(state, change, Outcome.REJECTED, "rejected by a person", seen.policy, now),
            is_failure=False,
        )
        note = Note(reason="ProposalRejected", message=f"{change.id} was rejected")
        return _said(state, Mood.WATCHING, "ProposalRejected", note.message), (note,)
    fresh = diagnosis.proposal(state, change, seen)
    if fresh is None or seen.policy.mode is TuningMode.OBSERVE:
        note = Note(reason="ProposalWithdrawn", message=f"{change.id} no longer applies")
        state = replace(state, current=None)
        return _said(state, Mood.WATCHING, "ProposalWithdrawn", note.message), (note,)
    state = _in_flight(replace(state, current=fresh), fresh)
    if guards.mode_of(state, seen.policy) is TuningMode.AUTO:
        return replace(state, current=None), ()  # nobody has to be asked any more
    is_approved = seen.approve == change.id
    held_by = stop or guards.patience(state, seen, now)
    if held_by is not None and (is_approved or held_by.freezes):
        text = f"{fresh.reason}, which waits: {held_by.message}"
        return _said(state, Phase.PROPOSED, held_by.reason, text), ()
    if not is_approved:
        return state, ()
    state, notes = flight.start(state, replace(fresh, is_approved=True), seen, now)
    return _in_flight(state, state.current), notes


def _in_flight(state: State, change: Change | None) -> State:
    if change is None:
        return state
    return _said(state, change.phase.value, change.symptom.value, change.reason)


def _said(state: State, mood: str, reason: str, message: str) -> State:
    return replace(state, mood=mood, reason=reason, message=message)


def _news(before: frozenset[Symptom], state: State) -> list[Note]:
    """Symptoms that hold since now, and those that have gone."""
    after = watch.held(state.symptoms)
    notes = []
    for item in state.symptoms:
        if item.symptom in after - before:
            shown = ", ".join(f"{name} {value:g}" for name, value in item.evidence.items())
            notes.append(Note(reason=item.symptom.value, message=f"three windows show it: {shown}"))
    gone = sorted(symptom.value for symptom in before - after)
    notes += [Note(reason="SymptomGone", message=f"{name} has gone") for name in gone]
    return notes

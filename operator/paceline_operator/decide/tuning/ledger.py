"""The books: overlay, history, bans and what was spent today, each as a new state."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from paceline_crds.knob import ChangeClass
from paceline_crds.settings import border_names
from paceline_crds.status_tuning import OverlayEntry
from paceline_operator.decide.tuning import moves, verdict
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.state import (
    MAX_HISTORY,
    Ban,
    Change,
    Ended,
    Outcome,
    Spent,
    State,
)

DAY_S = 86_400
MAX_BAN_S = 32 * DAY_S
MAX_BANS = 64


def is_restart(setting: str, policy: Policy) -> bool:
    """Whether a change of it replaces pods."""
    return setting in border_names(ChangeClass.RESTART) or not policy.changes_live


def today(state: State, now: int) -> State:
    """A new day begins with empty books."""
    day = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d")
    return state if state.spent.day == day else replace(state, spent=Spent(day=day))


def started(state: State, change: Change, policy: Policy) -> State:
    """One more change of the day."""
    spent = state.spent
    if is_restart(change.setting, policy):
        return replace(state, spent=replace(spent, restart=spent.restart + 1))
    return replace(state, spent=replace(spent, live=spent.live + 1))


def with_entry(entries: Iterable[OverlayEntry], entry: OverlayEntry) -> tuple[OverlayEntry, ...]:
    """The overlay with one entry instead of what it had of that name."""
    return (*(item for item in entries if item.name != entry.name), entry)


def restored(entries: Iterable[OverlayEntry], change: Change) -> tuple[OverlayEntry, ...]:
    """The overlay as it was before a change."""
    made = []
    for item in entries:
        if item.name != change.setting:
            made.append(item)
        elif change.previous:
            made.append(item.model_copy(update={"value": change.previous}))
    return tuple(made)


def accepted(state: State, change: Change, reason: str, policy: Policy, now: int) -> State:
    """A change that stays: what was measured with it is the next one's baseline, or begins it."""
    state = _closed(state, change, Outcome.ACCEPTED, reason, policy, now)
    if _is_reversal(state):
        state = replace(state, spent=replace(state.spent, reversals=state.spent.reversals + 1))
    measured = change.measured
    growing = Arm() if verdict.is_ground(measured, policy) else measured
    return replace(state, baseline=measured, growing=growing)


def ended(
    state: State,
    change: Change,
    outcome: Outcome,
    reason: str,
    policy: Policy,
    now: int,
    *,
    is_failure: bool,
) -> State:
    """A change that does not stay. A failure is remembered against its move."""
    state = _closed(state, change, outcome, reason, policy, now)
    state = replace(state, baseline=Arm(), growing=Arm())
    if outcome is Outcome.REJECTED:
        return banned(state, change, now)
    if not is_failure:
        return state
    spent = replace(state.spent, rollbacks=state.spent.rollbacks + 1)
    return banned(replace(state, spent=spent), change, now)


def banned(state: State, change: Change, now: int) -> State:
    """The move is tabu at that load for a day, twice as long each time it fails again."""
    direction = moves.direction_of(change.setting, change.before, change.after)
    key = (change.setting, direction, change.load_bin)
    old = [item for item in state.bans if (item.setting, item.direction, item.load_bin) == key]
    failures = 1 + max((item.failures for item in old), default=0)
    ban = Ban(
        setting=change.setting,
        direction=direction,
        load_bin=change.load_bin,
        until=now + min(MAX_BAN_S, DAY_S * 2 ** min(failures - 1, 10)),
        failures=failures,
    )
    others = sorted((item for item in state.bans if item not in old), key=lambda item: item.until)
    return replace(state, bans=(*others, ban)[-MAX_BANS:])


def _closed(
    state: State, change: Change, outcome: Outcome, reason: str, policy: Policy, now: int
) -> State:
    has_targets = policy.has_targets
    one = Ended(
        id=change.id,
        setting=change.setting,
        before=change.before,
        after=change.after,
        symptom=change.symptom,
        outcome=outcome,
        reason=reason,
        ended=now,
        measured_before=change.baseline.figures(has_targets) if change.baseline.windows else {},
        measured_after=change.measured.figures(has_targets) if change.measured.windows else {},
    )
    return replace(state, current=None, history=(*state.history, one)[-MAX_HISTORY:])


def _is_reversal(state: State) -> bool:
    """Whether the newest accepted change undoes the direction of the one before it."""
    newest = state.history[-1]
    directions = [
        moves.direction_of(item.setting, item.before, item.after)
        for item in state.history
        if item.outcome is Outcome.ACCEPTED and item.setting == newest.setting
    ]
    return len(directions) > 1 and directions[-1] is not directions[-2]

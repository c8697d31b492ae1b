"""The next change: the first symptom that holds, the first of its moves that may be made."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf

from paceline_crds.knob import ChangeClass
from paceline_operator.decide.tuning import dials, flight, guards, load, moves
from paceline_operator.decide.tuning.moves import Move, Room
from paceline_operator.decide.tuning.observation import Observation
from paceline_operator.decide.tuning.state import Change, Phase, State
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.decide.tuning.watch import Seen


class Obstacle(StrEnum):
    """Why a move is not made, beside those of `dials.Stuck`."""

    AT_BOUND = "AtBound"
    TABU = "Tabu"
    NEEDS_RESTART = "NeedsRestart"
    LIVE_NOT_ALLOWED = "LiveNotAllowed"
    NOT_SUPPORTED = "NotSupported"
    NOT_JUDGED = "NotJudged"
    """What it would do for users is not measured here."""
    CONTRADICTS = "Contradicts"
    """An earlier symptom asks for the other direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was found.

    Attributes:
        change: None if no move may be made.
        obstacles: per symptom, the moves that were not made, and why.
    """

    change: Change | None = None
    obstacles: Mapping[Symptom, tuple[tuple[Move, str], ...]] = field(default_factory=dict)

    @property
    def is_exhausted(self) -> bool:
        """Whether all that could be turned is at its bound."""
        found = [why for items in self.obstacles.values() for _, why in items]
        return bool(found) and Obstacle.AT_BOUND in found and self.change is None


def choose(state: State, seen: Observation, now: int) -> Choice:
    """The change to make or to propose now."""
    load_bin = load.bin_of(state.baseline)
    obstacles: dict[Symptom, tuple[tuple[Move, str], ...]] = {}
    for item in state.symptoms:
        if not item.holds:
            continue
        failed: list[tuple[Move, str]] = []
        for move in candidates(item, state, seen):
            why = obstacle(state, seen, move, load_bin, now)
            if not why and _contradicts(move, obstacles):
                why = Obstacle.CONTRADICTS
            if not why:
                change = flight.draft(state, item.symptom, move, load_bin, now)
                return Choice(change=change, obstacles={**obstacles, item.symptom: tuple(failed)})
            failed.append((move, why))
        obstacles[item.symptom] = tuple(failed)
    return Choice(obstacles=obstacles)


def _contradicts(move: Move, earlier: Mapping[Symptom, tuple[tuple[Move, str], ...]]) -> bool:
    """Whether a symptom that comes first wants the same setting to go the other way."""
    others = [other for items in earlier.values() for other, _ in items]
    return any(
        other.dial.name == move.dial.name and other.direction is not move.direction
        for other in others
    )


def candidates(item: Seen, state: State, seen: Observation) -> tuple[Move, ...]:
    """The moves for a symptom, in their order."""
    arm = state.baseline if state.baseline.windows else state.growing
    share, target = arm.attainment("itl"), seen.policy.targets.get("itl")
    room = Room(
        usage=arm.usage / arm.windows if arm.windows else 1.0,
        running=arm.running / arm.windows if arm.windows else inf,
        has_itl_slack=target is None or share is None or share >= target.attainment,
    )
    return moves.prescribed(item.symptom, seen.dials, seen.policy, room)


def obstacle(state: State, seen: Observation, move: Move, load_bin: str, now: int) -> str:
    """Why a move may not be made, empty if it may."""
    policy, dial = seen.policy, move.dial
    if dial.stuck is not None:
        return dial.stuck.value
    if move.is_at_bound:
        return Obstacle.AT_BOUND
    if not dials.is_supported(dial, move.after):
        return Obstacle.NOT_SUPPORTED
    if not policy.can_judge:
        return Obstacle.NOT_JUDGED
    if dial.change is ChangeClass.LIVE and not policy.allow_live:
        return Obstacle.LIVE_NOT_ALLOWED
    if dial.change is ChangeClass.RESTART and not guards.may_restart(state, policy, now):
        return Obstacle.NEEDS_RESTART
    if guards.is_tabu(state, dial.name, move.direction.value, load_bin, now):
        return Obstacle.TABU
    return ""


def proposal(state: State, change: Change, seen: Observation) -> Change | None:
    """A proposal as it stands now: with the newest baseline, or None if its ground has gone."""
    dial = seen.dials.get(change.setting)
    is_there = any(item.symptom is change.symptom and item.holds for item in state.symptoms)
    if dial is None or not is_there or dial.stuck is not None or change.phase is not Phase.PROPOSED:
        return None
    if change.before not in {dial.text, f"{dial.value:g}"} or seen.fingerprint != state.fingerprint:
        return None
    if state.baseline.windows:
        return replace(change, baseline=state.baseline, load_bin=load.bin_of(state.baseline))
    return change

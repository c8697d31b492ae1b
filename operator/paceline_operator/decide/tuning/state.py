"""What the tuner remembers. All of it stands in `status.tuning`; `codec` writes and reads it.

Times are whole seconds since the epoch and numbers are rounded when they are made, so that a state
that went through status is the same state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from paceline_crds.status_tuning import Direction, OverlayEntry
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.decide.tuning.watch import Seen

MAX_HISTORY = 10


class Phase(StrEnum):
    """How far a change is."""

    PROPOSED = "Proposed"
    """Waits for a person."""
    APPLYING = "Applying"
    """Intent is in status; pods are about to take it."""
    SETTLING = "Settling"
    """In force everywhere; what was running before still shows."""
    VERIFYING = "Verifying"
    """Being measured."""
    ROLLING_BACK = "RollingBack"
    """The overlay from before is wanted again."""


class Mood(StrEnum):
    """What the tuner does, as `status.tuning.state` has it, beside the phases of a change."""

    OFF = "Off"
    WATCHING = "Watching"
    FROZEN = "Frozen"
    EXHAUSTED = "Exhausted"
    HALTED = "Halted"


class Outcome(StrEnum):
    """How a change ended."""

    ACCEPTED = "Accepted"
    ROLLED_BACK = "RolledBack"
    REJECTED = "Rejected"
    SUPERSEDED = "Superseded"
    """A person changed what it stood on; there is nothing to take back."""
    ROLLBACK_FAILED = "RollbackFailed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change that is proposed or in flight.

    Attributes:
        setting: camelCase.
        before, after: values as text, as status shows them.
        previous: the tuner's own value before, "" if it had none: what a roll-back restores.
        crashes: restarts of containers when it was decided.
        reason: for people; verdict: why it is taken back, as a constant.
    """

    id: str
    setting: str
    before: str
    after: str
    symptom: Symptom
    phase: Phase
    started: int
    phase_since: int
    previous: str = ""
    is_approved: bool = False
    load_bin: str = ""
    crashes: int = 0
    reason: str = ""
    verdict: str = ""
    baseline: Arm = field(default_factory=Arm)
    measured: Arm = field(default_factory=Arm)

    @property
    def is_in_flight(self) -> bool:
        """Whether it has touched anything."""
        return self.phase is not Phase.PROPOSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A change that has ended."""

    id: str
    setting: str
    before: str
    after: str
    symptom: Symptom
    outcome: Outcome
    reason: str
    ended: int
    measured_before: Mapping[str, float] = field(default_factory=dict)
    measured_after: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """A move that failed and is not repeated at that load for a while."""

    setting: str
    direction: Direction
    load_bin: str
    until: int
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What was done on a day (UTC)."""

    day: str = ""
    live: int = 0
    restart: int = 0
    rollbacks: int = 0
    reversals: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What a person can do that the tuner may not."""

    symptom: Symptom
    text: str
    change: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything.

    Attributes:
        mood: a Mood, or the Phase of the change.
        reason: constant; message: for people.
        sequence: number of the last change.
        seen_until: end of the last window that was looked at, 0 for none.
        serving: pods that shared the requests when it was looked last, 0 for unknown or none.
        serving_since: when that number was seen to have changed, 0 for never.
        stopped_since: when what keeps it from new changes began, 0 for nothing.
        lack: why the last window was no measurement, empty if it was one.
        fingerprint: of the spec that arms were measured under.
        baseline: the last complete arm; growing: the next one.
    """

    mood: str = Mood.WATCHING
    reason: str = ""
    message: str = ""
    symptoms: tuple[Seen, ...] = ()
    current: Change | None = None
    overlay: tuple[OverlayEntry, ...] = ()
    bans: tuple[Ban, ...] = ()
    spent: Spent = field(default_factory=Spent)
    history: tuple[Ended, ...] = ()
    advice: tuple[Advice, ...] = ()
    sequence: int = 0
    seen_until: int = 0
    serving: int = 0
    serving_since: int = 0
    stopped_since: int = 0
    lack: str = ""
    fingerprint: str = ""
    baseline: Arm = field(default_factory=Arm)
    growing: Arm = field(default_factory=Arm)

    def newest(self) -> int:
        """The newest moment that it knows of: no clock that was set back may run behind it."""
        moments = [self.seen_until, self.serving_since, self.stopped_since]
        moments += [item.ended for item in self.history]
        if self.current is not None:
            moments += [self.current.started, self.current.phase_since]
        return max(moments)

"""`status.tuning`: the tuner's memory, written before anything is touched."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from paceline_crds.fields import Count, ItemName, LongText, Timestamp
from paceline_crds.group import Group
from paceline_crds.rules import ListType
from paceline_crds.source import Source

Id = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-zA-Z0-9.-]+$")]
Value = Annotated[str, StringConstraints(max_length=128)]
Decimal = Annotated[str, StringConstraints(max_length=24, pattern=r"^-?[0-9]+(\.[0-9]+)?$")]
Word = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]+$")]
Measurements = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=63)], Decimal],
    Field(max_length=16),
]


class Direction(StrEnum):
    """Which way a setting was moved."""

    UP = "Up"
    DOWN = "Down"


class Arm(Group):
    """One side of a comparison: consecutive windows under the same settings, added up."""

    start: Timestamp
    """Start of its first window."""
    end: Timestamp
    """End of its last window."""
    windows: Count
    """Number of windows."""
    sums: Annotated[
        dict[Annotated[str, StringConstraints(min_length=1, max_length=63)], Decimal],
        Field(max_length=32),
    ]
    """What its windows add up to, of all counted pods together."""


class Symptom(Group):
    """What the measurements show."""

    name: Word
    """The symptom's constant."""
    since: Timestamp | None = None
    """When it was first seen."""
    windows: Count | None = None
    """Windows in a row that showed it; it is acted on from three on."""
    calm: Count | None = None
    """Windows in a row that no longer showed it."""
    evidence: Measurements | None = None
    """Figures that it was told by."""
    evaluated: bool | None = None
    """False where a target or signal is missing. Default: true."""


class Change(Group):
    """A change that is proposed or in flight."""

    id: Id
    """Names the change in annotations and events."""
    setting: ItemName
    """Name of the setting."""
    before: Value
    """Value before."""
    after: Value
    """Value after."""
    phase: Word
    """How far it is."""
    symptom: Word | None = None
    """Why it is made."""
    started: Timestamp | None = None
    """When it was decided."""
    phase_since: Timestamp | None = None
    """When the phase began."""
    previous: Value | None = None
    """The tuner's value before, which a roll-back restores; absent if there was none."""
    approved: bool | None = None
    """Whether a person approved it."""
    load_bin: Annotated[str, StringConstraints(max_length=63)] | None = None
    """Load at which it was decided."""
    crashes: Count | None = None
    """Restarts of containers when it was decided."""
    reason: LongText | None = None
    """Why it is made or taken back, for people."""
    verdict: Word | None = None
    """Why it is taken back, as a constant."""
    baseline: Arm | None = None
    """What was measured before it."""
    measured: Arm | None = None
    """What is measured since."""


class OverlayEntry(Group):
    """A value that the tuner keeps in force."""

    name: ItemName
    """Name of the setting."""
    value: Value
    """The tuner's value."""
    base: Value
    """Value that it replaced."""
    base_source: Source
    """Who had given that; the entry is dropped when base or source differ from now."""
    since: Timestamp | None = None
    """When it was accepted."""


class Tabu(Group):
    """A move that failed and is not repeated for a while."""

    setting: ItemName
    """Name of the setting."""
    direction: Direction
    """Which way it was moved."""
    load_bin: Annotated[str, StringConstraints(max_length=63)]
    """Load at which it failed."""
    until: Timestamp
    """When it may be tried again."""
    failures: Count | None = None
    """How often it failed."""


class Budget(Group):
    """What the tuner did today, against its daily limits."""

    day: Annotated[str, StringConstraints(max_length=10, pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    """The day, UTC."""
    live_changes: Count | None = None
    """Live changes made."""
    restart_changes: Count | None = None
    """Changes made that replaced pods."""
    rollbacks: Count | None = None
    """Changes taken back."""
    reversals: Count | None = None
    """Accepted changes that undid the direction of an earlier one."""


class HistoryEntry(Group):
    """A change that has ended."""

    id: Id
    """Names the change."""
    setting: ItemName
    """Name of the setting."""
    before: Value
    """Value before."""
    after: Value
    """Value after."""
    outcome: Word
    """Accepted, RolledBack or why there was no verdict."""
    reason: LongText | None = None
    """The same for people."""
    symptom: Word | None = None
    """Why it was made."""
    ended: Timestamp
    """When it ended."""
    measured_before: Measurements | None = None
    """Figures before the change."""
    measured_after: Measurements | None = None
    """Figures after it."""


class Recommendation(Group):
    """What a person can do that the tuner may not."""

    symptom: Word
    """Why."""
    text: LongText
    """One sentence with the figures that speak for it."""
    change: LongText | None = None
    """The change to make in the manifest."""


class TuningStatus(Group):
    """What the tuner sees and does."""

    state: Word | None = None
    """What it does now."""
    reason: Word | None = None
    """Why, as a constant."""
    message: LongText | None = None
    """The same for people."""
    symptoms: Annotated[list[Symptom], Field(max_length=16), ListType(("name",))] | None = None
    """What the measurements show."""
    current: Change | None = None
    """The change that is proposed or in flight."""
    overlay: Annotated[list[OverlayEntry], Field(max_length=64), ListType(("name",))] | None = None
    """Values that the tuner keeps in force."""
    tabu: (
        Annotated[list[Tabu], Field(max_length=64), ListType(("setting", "direction", "loadBin"))]
        | None
    ) = None
    """Moves that are not repeated for a while."""
    budget: Budget | None = None
    """What it did today."""
    history: Annotated[list[HistoryEntry], Field(max_length=10), ListType(("id",))] | None = None
    """The last changes that ended, newest last."""
    recommendations: (
        Annotated[list[Recommendation], Field(max_length=16), ListType(("symptom",))] | None
    ) = None
    """What a person can do."""
    sequence: Count | None = None
    """Number of the last change."""
    seen_until: Timestamp | None = None
    """End of the last window that was looked at."""
    serving_pods: Count | None = None
    """Pods that shared the requests when it was looked last."""
    serving_since: Timestamp | None = None
    """When that number was seen to have changed; windows that began before are left out."""
    stopped_since: Timestamp | None = None
    """Since when something keeps the tuner from new changes."""
    lack_of_metrics: Word | None = None
    """Why the last window was no measurement."""
    fingerprint: Annotated[str, StringConstraints(max_length=63)] | None = None
    """Tells a spec that was changed."""
    baseline: Arm | None = None
    """The last complete measurement under the settings in force."""
    growing: Arm | None = None
    """The next one."""

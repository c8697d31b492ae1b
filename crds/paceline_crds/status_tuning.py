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


class Symptom(Group):
    """What the measurements show."""

    name: Word
    """The symptom's constant."""
    since: Timestamp | None = None
    """When it was first seen."""
    windows: Count | None = None
    """Windows in a row that showed it."""
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
    revision: Count | None = None
    """Revision of the settings that carries it."""


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


class TuningStatus(Group):
    """What the tuner sees and does."""

    state: Word | None = None
    """What it does now."""
    reason: Word | None = None
    """Why, as a constant."""
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

"""What the contract says of one setting beside its type, default and bounds."""

from dataclasses import dataclass
from enum import StrEnum


class ChangeClass(StrEnum):
    """What it takes for a new value to be in force."""

    LIVE = "live"
    """Between two steps of a running engine."""
    RESTART = "restart"
    """A new engine process (a new pod)."""
    IMMUTABLE = "immutable"
    """Never, for this object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Metadata of one setting, attached to its field with `Annotated`.

    Attributes:
        change: what it takes for a new value to be in force.
        unit: what the number counts ("tokens", "s", "ms", ""), as in the field's help.
        spec: dotted place below `spec` in an LLMDeployment; empty if only a flag sets it.
        flag: the flag of `paceline serve`; empty means kebab-case of the name.
        boot_maximum: snake_case name of the setting that bounds this one while running.
        tunable: the tuner may move it within `spec.tuning.bounds`.
        since: release that introduced the name; names never change afterwards.
    """

    change: ChangeClass
    unit: str = ""
    spec: str = ""
    flag: str = ""
    boot_maximum: str = ""
    tunable: bool = False
    since: str = "v1alpha1"

"""Who gave a setting the value in force."""

from enum import StrEnum


class Source(StrEnum):
    """As `status.effective[].source` says it; an earlier one wins over a later one."""

    TUNER = "Tuner"
    SPEC = "Spec"
    OBJECTIVE = "Objective"
    DEFAULT = "Default"
    ENGINE = "Engine"
    """Derived by the engine from its model and device, where nobody else said anything."""

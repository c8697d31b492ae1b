"""Which value wins, as far as spec and objective decide: Spec > Objective > Default.

The operator lays the tuner's overlay on top; the engine fills in what its device decides.
"""

from typing import Any

from paceline_crds import durations
from paceline_crds.group import is_duration
from paceline_crds.objective import Resolved, start
from paceline_crds.settings import EngineSettings, knobs
from paceline_crds.spec import LLMDeploymentSpec, value_at


def pinned(spec: LLMDeploymentSpec) -> dict[str, Any]:
    """What the user wrote: snake_case name of the setting -> its value in the setting's unit."""
    written: dict[str, Any] = {}
    for name, knob in knobs().items():
        value = value_at(spec, knob.spec) if knob.spec else None
        if value is None:
            continue
        if is_duration(knob):
            value = durations.parse_ms(value) // (1000 if knob.unit == "s" else 1)
        written[name] = value
    return written


def resolve(spec: LLMDeploymentSpec) -> Resolved:
    """Settings of a deployment with their sources."""
    return start(pinned(spec), spec.objective)


def settings_of(spec: LLMDeploymentSpec) -> EngineSettings:
    """Settings of a deployment."""
    return resolve(spec).settings

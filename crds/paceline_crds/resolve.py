"""Which value wins, as far as spec and objective decide: Spec > Objective > Default.

The operator lays the tuner's overlay on top; the engine fills in what its device decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from paceline_crds import durations
from paceline_crds.errors import InvalidSettings
from paceline_crds.group import is_duration
from paceline_crds.objective import STARTING_VALUES, Objective, below_boot_maxima
from paceline_crds.settings import EngineSettings, knobs
from paceline_crds.source import Source
from paceline_crds.spec import LLMDeploymentSpec, value_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Settings and where each came from.

    Attributes:
        settings: built from what is set only, so `model_fields_set` tells it from defaults.
        sources: snake_case name -> source, for every setting.
    """

    settings: EngineSettings
    sources: Mapping[str, Source]


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


def start(written: Mapping[str, Any], objective: Objective | None) -> Resolved:
    """Settings from what a person wrote (manifest or flags) and an objective.

    Raises:
        InvalidSettings: a value is out of its bounds or above its own boot maximum.
    """
    starting: Mapping[str, Any] = STARTING_VALUES[objective] if objective else {}
    filled = below_boot_maxima(written, starting)
    try:
        settings = EngineSettings(**written, **filled)
    except ValidationError as error:
        raise InvalidSettings(
            "\n".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
        ) from error
    sources = {
        name: Source.SPEC
        if name in written
        else Source.OBJECTIVE
        if name in starting and name in filled
        else Source.DEFAULT
        for name in knobs()
    }
    return Resolved(settings=settings, sources=sources)


def resolve(spec: LLMDeploymentSpec) -> Resolved:
    """Settings of a deployment with their sources."""
    return start(pinned(spec), spec.objective)


def settings_of(spec: LLMDeploymentSpec) -> EngineSettings:
    """Settings of a deployment."""
    return resolve(spec).settings

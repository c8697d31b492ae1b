"""`spec.tuning`: what the tuner may do, within which bounds, and when."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar, get_args, get_origin

from pydantic import Field, StringConstraints, create_model

from paceline_crds import group
from paceline_crds.fields import ItemName, MinutesToAWeek, TenSecondsToADay, UpToAWeek
from paceline_crds.group import Group
from paceline_crds.rules import ListType, Rule
from paceline_crds.settings import EngineSettings, border_name, knobs


class TuningMode(StrEnum):
    """What the tuner does with what it finds."""

    OFF = "Off"
    OBSERVE = "Observe"
    PROPOSE = "Propose"
    AUTO = "Auto"


class Weekday(StrEnum):
    """Days of a maintenance window."""

    MONDAY = "Monday"
    TUESDAY = "Tuesday"
    WEDNESDAY = "Wednesday"
    THURSDAY = "Thursday"
    FRIDAY = "Friday"
    SATURDAY = "Saturday"
    SUNDAY = "Sunday"


class MaintenanceWindow(Group):
    """A recurring time in which changes that replace pods are allowed."""

    name: ItemName
    """Name of the window."""
    days: Annotated[list[Weekday], Field(min_length=1, max_length=7), ListType()] | None = None
    """Days on which it starts. Default: every day."""
    start: Annotated[
        str, StringConstraints(max_length=5, pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")
    ]
    """Time of day at which it starts, such as "22:00"."""
    duration: MinutesToAWeek
    """How long it stays open, such as 4h."""
    time_zone: (
        Annotated[
            str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")
        ]
        | None
    ) = None
    """IANA name such as Europe/Berlin. Default: UTC."""


class _Range(Group):
    """Least and most value that the tuner may set, both inclusive."""


def _range_of(name: str) -> type[Group]:
    """The bounds of one tunable setting: least and most, or for an enum the values allowed."""
    bare: Any = group.bare(name)
    plain = get_args(bare)[0] if get_origin(bare) is Annotated else bare
    label = border_name(name)
    fields: dict[str, Any]
    rules: tuple[Rule, ...] = ()
    if issubclass(plain, StrEnum):
        allowed = Annotated[list[bare], Field(min_length=1, max_length=16), ListType()]
        fields = {"allowed": (allowed, Field(description="Values that the tuner may set."))}
    else:
        fields = {
            "min": (bare | None, Field(None, description="Least value.")),
            "max": (bare | None, Field(None, description="Most value.")),
        }
        cast, number = ("double({})", float) if plain is str else ("{}", int)
        least, most = cast.format("self.min"), cast.format("self.max")
        rules = (
            Rule(
                f"!has(self.min) || !has(self.max) || {least} <= {most}",
                f"tuning.bounds.{label}.min must be <= max; lower min or raise max",
                lambda bounds: (
                    bounds.given("min") is None
                    or bounds.given("max") is None
                    or number(bounds.given("min")) <= number(bounds.given("max"))
                ),
            ),
        )
    made = create_model(f"{name}_bounds", __base__=_Range, __module__=__name__, **fields)
    made.rules = rules
    return made


def _with_each_tunable(cls: type[Group]) -> Any:
    """Class decorator: add the bounds of each setting that the tuner may move."""
    fields: dict[str, Any] = {
        name: (
            _range_of(name) | None,
            Field(
                None,
                alias=border_name(name),
                description=f"Bounds of {border_name(name)}: "
                f"{EngineSettings.model_fields[name].description}",
            ),
        )
        for name, knob in knobs().items()
        if knob.tunable
    }
    return create_model(
        cls.__name__, __base__=cls, __module__=cls.__module__, __doc__=cls.__doc__, **fields
    )


@_with_each_tunable
class Bounds(Group):
    """Bounds per setting. Naming a setting here lets the tuner move it even if spec pins it."""


class Tuning(Group):
    """What the tuner may do. It writes status, never spec."""

    mode: TuningMode | None = None
    """Quote "Off": plain Off is a boolean in YAML. Default: Auto, and Propose for runtime VLLM."""
    allow_live: bool | None = None
    """Whether Auto may change settings that need no restart. Default: true."""
    allow_restart: bool | None = None
    """Whether Auto may replace pods for a change, in maintenance windows. Default: false."""
    bounds: Bounds | None = None
    """Bounds per setting. Default: from half the starting value to the boot maximum."""
    window: TenSecondsToADay | None = None
    """Length of one measurement; it must hold four scrapes. Default: 2m."""
    min_requests: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Finished requests that each side of a comparison needs. Default: 2000."""
    cooldown: UpToAWeek | None = None
    """Pause after a change. Default: 15m after a live change, 6h after one that replaced pods."""
    maintenance_windows: (
        Annotated[list[MaintenanceWindow], Field(max_length=16), ListType(("name",))] | None
    ) = None
    """When changes that replace pods are allowed."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.allowRestart) || !self.allowRestart || "
            "(has(self.maintenanceWindows) && size(self.maintenanceWindows) > 0)",
            "tuning.allowRestart needs tuning.maintenanceWindows; add a window or set "
            "allowRestart: false",
            lambda tuning: not tuning.allow_restart or bool(tuning.maintenance_windows),
        ),
    )

"""The base of every object below `spec` and `status`, and the fields that settings give them."""

import types
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import Field, GetJsonSchemaHandler, StringConstraints, create_model, model_validator
from pydantic.alias_generators import to_snake
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from paceline_crds import durations, rules
from paceline_crds.knob import Knob
from paceline_crds.rules import Rule
from paceline_crds.settings import EngineSettings, knobs
from paceline_crds.strict_model import StrictModel

G = TypeVar("G", bound="Group")


class Group(StrictModel):
    """An object of the resource, with the rules of its class.

    Every field is optional unless the type says otherwise, and absent means "not pinned".
    """

    rules: ClassVar[tuple[Rule, ...]] = ()

    def given(self, name: str) -> Any:
        """The value of a field that a setting declared (snake_case), or None."""
        return getattr(self, name)

    @model_validator(mode="after")
    def _rules_hold(self) -> "Group":
        wrong = [rule.message for rule in self.rules if not rule.holds(self)]
        if wrong:
            raise rules.broken("\n".join(wrong))
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        json_schema = handler(core_schema)
        if cls.rules:
            target = handler.resolve_ref_schema(json_schema)
            target[rules.VALIDATIONS] = [rule.as_schema() for rule in cls.rules]
        return json_schema


def without_none(annotation: Any) -> Any:
    """`int` of `int | None`; anything else as it is."""
    if get_origin(annotation) in {Union, types.UnionType}:
        inner = [arg for arg in get_args(annotation) if arg is not type(None)]
        if len(inner) == 1:
            return inner[0]
    return annotation


def bare(name: str) -> Any:
    """A setting's type with its bounds, without None and without the knob."""
    field = EngineSettings.model_fields[name]
    metadata = [item for item in field.metadata if not isinstance(item, Knob)]
    inner = without_none(field.annotation)
    return Annotated[(inner, *metadata)] if metadata else inner


def is_duration(knob: Knob) -> bool:
    """Whether spec writes the setting as a duration: its name there carries no unit."""
    leaf = knob.spec.rpartition(".")[2]
    return knob.unit in {"s", "ms"} and not leaf.endswith(("Ms", "Seconds"))


def help_of(name: str) -> str:
    """A setting's help for the spec's field: what it is, its default, its change class."""
    field, knob = EngineSettings.model_fields[name], knobs()[name]
    sentence = field.description or ""
    if field.default is not None:
        default = str(field.default)
        if isinstance(field.default, bool):
            default = default.lower()
        elif is_duration(knob):
            default = durations.format_ms(field.default * (1000 if knob.unit == "s" else 1))
        sentence += f" Default: {default}."
    return f"{sentence} Change: {knob.change}."


def settings_at(path: str, *, required: tuple[str, ...] = ()) -> Callable[[type[G]], type[G]]:
    """Class decorator: add a field for each setting whose place is directly below `spec.path`.

    So a new knob with a place in spec is one declaration, in `settings`. `required` names leaves
    (snake_case) without which the group says nothing.
    """

    def add(cls: type[G]) -> type[G]:
        fields: dict[str, Any] = {}
        boot_rules: list[Rule] = []
        for name, knob in knobs().items():
            parent, _, leaf = knob.spec.rpartition(".")
            if not leaf or parent != path:
                continue
            default = ... if to_snake(leaf) in required else None
            kind = _duration(name, knob) if is_duration(knob) else bare(name)
            fields[to_snake(leaf)] = (
                kind if default is ... else kind | None,
                Field(default, alias=leaf, description=help_of(name)),
            )
            if knob.boot_maximum:
                boot_rules.append(_boot_rule(knob))
        made = create_model(
            cls.__name__, __base__=cls, __module__=cls.__module__, __doc__=cls.__doc__, **fields
        )
        made.rules = (*cls.rules, *boot_rules)
        return made

    return add


def _duration(name: str, knob: Knob) -> Any:
    field: FieldInfo = EngineSettings.model_fields[name]
    factor = 1000 if knob.unit == "s" else 1
    least = next(item.ge for item in field.metadata if hasattr(item, "ge"))
    most = next(item.le for item in field.metadata if hasattr(item, "le"))
    pattern = durations.PATTERN_WHOLE_SECONDS if knob.unit == "s" else durations.PATTERN
    return Annotated[
        str,
        StringConstraints(pattern=pattern, max_length=durations.MAX_LENGTH),
        rules.duration_between(least * factor, most * factor),
    ]


def _boot_rule(knob: Knob) -> Rule:
    value = knob.spec.rpartition(".")[2]
    boot = knobs()[knob.boot_maximum].spec.rpartition(".")[2]

    def holds(group: Any) -> bool:
        number, most = group.given(to_snake(value)), group.given(to_snake(boot))
        return number is None or most is None or number <= most

    return Rule(
        f"!has(self.{value}) || !has(self.{boot}) || self.{value} <= self.{boot}",
        f"{value} must be <= {boot}; lower {value}, or raise {boot} (which replaces the pods)",
        holds,
    )

"""Changing settings while the engine runs: all of a change or nothing of it.

A change is checked in this order, and refused with the first that fails: names, types and absolute
bounds (400); the writer's revision (412); what needs a restart (409); what this release does not
build (400); what lies above a boot maximum, or needs another setting to be of use (409).

Revisions only grow. A writer that sends none means the next one. A lower one is refused, so a
writer that was paused cannot undo what came after it; an equal one is the same change once more if
the settings it leads to are those in force, else somebody else's change, and refused.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from paceline_crds import flags, phrases
from paceline_crds.knob import ChangeClass
from paceline_crds.settings import EngineSettings, border_name, border_names, knobs
from paceline_engine.core.errors import SettingRefused
from paceline_engine.core.unsupported import refuse_change

MAX_REVISION = 2**53 - 1
"""The largest whole number that every reader of JSON keeps exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsState:
    """The settings in force. `generation` counts applied changes, `revision` is the writer's."""

    settings: EngineSettings
    generation: int
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """Answer to a settings change: what was and what is, camelCase names, changed ones only."""

    generation: int
    revision: int
    old: Mapping[str, Any]
    new: Mapping[str, Any]


class SettingsBook:
    """The settings in force and who may change them. Mutable; owned by the step loop.

    Attributes:
        state: replaced by each accepted change.
    """

    def __init__(self, settings: EngineSettings, *, generation: int = 0, revision: int = 0) -> None:
        self.state = SettingsState(
            settings=settings.booted(), generation=generation, revision=revision
        )

    def patch(self, changes: Mapping[str, Any], revision: int | None = None) -> SettingsChange:
        """Check a change and put it in force. Call it between two steps.

        Args:
            changes: camelCase name -> JSON value.
            revision: the writer's; None is the one after the revision in force.

        Raises:
            SettingRefused: 400, 409 or 412; nothing has changed.
        """
        state = self.state
        update = parse_changes(changes)
        wanted = _next_revision(revision, state.revision)
        changed = {
            name: value for name, value in update.items() if value != getattr(state.settings, name)
        }
        if wanted == state.revision and changed:
            raise SettingRefused(
                412,
                border_name(next(iter(changed))),
                f"revision {wanted} is in force with other settings ({_names(changed)} differ); "
                f"read the settings and use revision {wanted + 1}",
            )
        _check_change_classes(changed)
        refuse_change(state.settings.model_copy(update=changed))
        _check_boot_maxima(state.settings, changed)
        old, new = state.settings, state.settings.model_copy(update=changed)
        _check_agreement(new, changed)
        self.state = SettingsState(
            settings=new, generation=state.generation + bool(changed), revision=wanted
        )
        before, after = old.on_border(), new.on_border()
        names = [border_name(name) for name in changed]
        return SettingsChange(
            generation=self.state.generation,
            revision=wanted,
            old={name: before[name] for name in names},
            new={name: after[name] for name in names},
        )


def _names(fields: Iterable[str]) -> str:
    return ", ".join(border_name(name) for name in fields)


def parse_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """snake_case name -> value of the field's type.

    Raises:
        SettingRefused: 400, an unknown name, a wrong type or a value beyond absolute bounds.
    """
    parsed: dict[str, Any] = {}
    known = border_names()
    for given, value in changes.items():
        if given not in known:
            # Anybody's text, half characters too: it is shown in a form that can be sent.
            shown = ascii(given)[1:-1][:64]
            raise SettingRefused(
                400, shown, f"{shown} is no setting; expected one of {', '.join(known)}"
            )
        name = known[given]
        try:
            # JSON mode: strict about types, yet a word is taken for its enum.
            text = json.dumps(value)
            parsed[name] = _adapter(name).validate_json(text, strict=True)
        except ValidationError as error:
            raise SettingRefused(400, given, _out_of_bounds(given, name, value)) from error
        except (TypeError, ValueError) as error:
            raise SettingRefused(
                400, given, f"{given} must be a JSON value, got {value!r}"
            ) from error
    return parsed


def _out_of_bounds(given: str, name: str, value: Any) -> str:
    knob = knobs()[name]
    unit = f" ({knob.unit})" if knob.unit else ""
    absent = " or null" if EngineSettings.model_fields[name].default is None else ""
    return f"{given} must be {flags.expected(name)}{absent}{unit}, got {phrases.got(value)}"


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    """Validator of one field alone: its type with its bounds."""
    field = EngineSettings.model_fields[name]
    annotated: Any = Annotated
    return TypeAdapter(annotated[(field.annotation, *field.metadata)])


def check_revision(revision: object) -> None:
    """A writer's revision is a whole number that every reader of JSON keeps exactly.

    Raises:
        SettingRefused: 400.
    """
    if type(revision) is not int or not 0 <= revision <= MAX_REVISION:
        raise SettingRefused(
            400,
            "revision",
            f"revision must be a whole number from 0 to {MAX_REVISION}, got {revision!r}",
        )


def _next_revision(revision: int | None, in_force: int) -> int:
    if revision is None:
        if in_force >= MAX_REVISION:
            raise SettingRefused(
                409, "revision", f"no revision comes after {in_force}; restart the engine"
            )
        return in_force + 1
    check_revision(revision)
    if revision < in_force:
        raise SettingRefused(
            412,
            "revision",
            f"revision {revision} is older than {in_force}, which is in force; read the settings "
            f"and use revision {in_force + 1}",
        )
    return revision


def _check_change_classes(changed: Iterable[str]) -> None:
    """Refuse with 409 what cannot change while the engine runs."""
    bound = [name for name in changed if knobs()[name].change is not ChangeClass.LIVE]
    if not bound:
        return
    first = bound[0]
    change = knobs()[first].change
    needs = (
        "it can never change"
        if change is ChangeClass.IMMUTABLE
        else "start a new engine with the new value"
    )
    raise SettingRefused(
        409,
        border_name(first),
        f"{_names(bound)} cannot change while the engine runs (change class {change}); {needs}",
    )


def _check_agreement(settings: EngineSettings, changed: Iterable[str]) -> None:
    """Refuse with 409 what does not go with a setting that only a restart can change."""
    try:
        EngineSettings.model_validate(settings.model_dump())
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise SettingRefused(409, border_name(next(iter(changed))), message) from error


def _check_boot_maxima(settings: EngineSettings, changed: Mapping[str, Any]) -> None:
    """Refuse with 409 what memory was not planned for."""
    for name, value in changed.items():
        boot_name = knobs()[name].boot_maximum
        if not boot_name or value is None:
            continue
        boot = getattr(settings, boot_name)
        if value > boot:
            raise SettingRefused(
                409,
                border_name(name),
                f"{border_name(name)} must be <= {border_name(boot_name)} ({boot}), got {value}; "
                f"raise {border_name(boot_name)} (change class {knobs()[boot_name].change}) and "
                "restart",
            )

"""The flags of `paceline serve` for the settings, generated from their declarations."""

import argparse
from collections.abc import Callable
from enum import StrEnum
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from paceline_crds import objective, phrases, unsupported
from paceline_crds.group import bare
from paceline_crds.knob import Knob
from paceline_crds.settings import EngineSettings, border_name, knobs


def flag_of(name: str) -> str:
    """`max_num_seqs` -> `--max-num-seqs`; vLLM's flag where the knob names one."""
    return knobs()[name].flag or "--" + name.replace("_", "-")


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting. A flag that is not given leaves nothing in the namespace."""
    group = parser.add_argument_group(
        "settings", "Each is described in docs/settings.md; a manifest's spec has the same ones."
    )
    for name, knob in knobs().items():
        kind = _plain(name)
        options: dict[str, Any] = {
            "dest": name,
            "default": argparse.SUPPRESS,
            "help": help_of(name).replace("%", "%%"),
        }
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["type"] = _reader(name)
            options["metavar"] = _metavar(kind, knob)
        group.add_argument(flag_of(name), **options)


def settings_from_args(namespace: argparse.Namespace) -> EngineSettings:
    """Settings from the flags that were given; `model_fields_set` holds those alone.

    A default above a boot maximum that was given is lowered to it.

    Raises:
        InvalidSettings: flags that exclude each other.
    """
    written = {name: getattr(namespace, name) for name in knobs() if hasattr(namespace, name)}
    return objective.start(written, None).settings


def help_of(name: str) -> str:
    """Help text: what it is, what it must be, default, unit, change class."""
    field, knob = EngineSettings.model_fields[name], knobs()[name]
    notes = [expected(name)]
    if knob.unit:
        notes.append(f"in {knob.unit}")
    if field.default is not None:
        notes.append(f"default {default_text(name)}")
    elif "default" not in described(name).lower():
        notes.append("default: none")
    notes.append(f"change: {knob.change}")
    return f"{described(name)} ({'; '.join(notes)})"


def described(name: str) -> str:
    """What a setting is, and what this release does not build of it."""
    description = EngineSettings.model_fields[name].description or ""
    return " ".join(filter(None, (description, unsupported.note(name))))


def expected(name: str) -> str:
    """What a value of the setting must be, in words."""
    fragment = TypeAdapter(bare(name)).json_schema()
    return phrases.expected(fragment)


def default_text(name: str) -> str:
    """The declared default as a manifest would show it."""
    default = EngineSettings.model_fields[name].default
    return str(default).lower() if isinstance(default, bool) else str(default)


def _plain(name: str) -> Any:
    kind = bare(name)
    return get_args(kind)[0] if get_origin(kind) is not None else kind


def _metavar(kind: Any, knob: Knob) -> str:
    if get_origin(kind) is tuple:
        return "JSON"
    if issubclass(kind, StrEnum):
        return "{" + ",".join(kind) + "}"
    return (knob.unit or ("N" if kind is int else "DECIMAL")).upper()


def _reader(name: str) -> Callable[[str], Any]:
    adapter: TypeAdapter[Any] = TypeAdapter(bare(name))
    kind = _plain(name)
    is_list = get_origin(kind) is tuple

    def read(text: str) -> Any:
        if not is_list and issubclass(kind, StrEnum):
            for member in kind:
                if member.value.lower() == text.lower():
                    return member
        try:
            return adapter.validate_json(text) if is_list else adapter.validate_python(text)
        except ValidationError:
            raise argparse.ArgumentTypeError(
                f"{border_name(name)} must be {expected(name)}, got {text!r}; "
                f"change {flag_of(name)} or leave it out"
            ) from None

    return read

"""Settings as people write them, as flags of `paceline serve`, and what a restart carries over."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import CommandError
from paceline_crds import flags
from paceline_crds.knob import ChangeClass
from paceline_crds.settings import EngineSettings, knobs


def flags_for(settings: Mapping[str, Any]) -> list[str]:
    """snake_case name -> value, as flags; None (not pinned) gives none."""
    written: list[str] = []
    for name, value in settings.items():
        flag = flags.flag_of(name)
        if value is None:
            continue
        if isinstance(value, bool):
            written.append(flag if value else "--no-" + flag.removeprefix("--"))
        elif isinstance(value, tuple):
            entries = [entry.model_dump(by_alias=True, exclude_none=True) for entry in value]
            written += [flag, json.dumps(entries)]
        else:
            written += [flag, str(value)]
    return written


def carried_over(planned: Mapping[str, Any], in_force: EngineSettings) -> dict[str, Any]:
    """Settings of a replica that starts again: what was planned, with what changed while it ran.

    Live settings and the boot maxima that bound them come from the engine, so that a value in force
    is never above a maximum derived anew; the rest is as planned.
    """
    declared = knobs()
    maxima = {knob.boot_maximum for knob in declared.values() if knob.boot_maximum}
    carried = dict(planned)
    for name, knob in declared.items():
        if knob.change is ChangeClass.LIVE or name in maxima:
            carried[name] = getattr(in_force, name)
    return carried


def changes(old: EngineSettings, new: EngineSettings) -> str:
    """What differs, for people: `maxNumSeqs 8 -> 5`."""
    before, after = old.on_border(), new.on_border()
    return ", ".join(
        f"{name} {before[name]} -> {value}"
        for name, value in after.items()
        if before[name] != value
    )


def pair_of(text: str) -> tuple[str, str]:
    """`maxNumSeqs=8`, given with --set -> ("maxNumSeqs", "8").

    Raises:
        CommandError: a text without a name or a value.
    """
    name, is_pair, value = text.partition("=")
    if not is_pair or not name:
        raise CommandError(f"--set must be NAME=VALUE, got {text!r}")
    return name, value


def changes_of(given: Sequence[str]) -> dict[str, Any]:
    """`maxNumSeqs=8` -> {"maxNumSeqs": 8}; what is no JSON is a word.

    Raises:
        CommandError: a text without a name or a value.
    """
    changes: dict[str, Any] = {}
    for name, value in map(pair_of, given):
        try:
            changes[name] = json.loads(value)
        except ValueError:
            changes[name] = value
        if isinstance(changes[name], float):  # shares are decimals in quotes
            changes[name] = value
    return changes

"""Values of settings written as flags of `paceline serve`, and what a restart has to carry over."""

import json
from collections.abc import Mapping
from typing import Any

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

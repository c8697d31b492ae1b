"""The settings file: live settings that somebody else keeps, laid over those of the command line.

An operator mounts it, so that a process that starts again comes back with the settings in force and
not with those it was first started with: `{"revision": 7, "settings": {"maxNumSeqs": 64}}`. It is
read once the model is loaded; from then on changes come over the admin port.
"""

import json
import logging
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paceline_crds.knob import ChangeClass
from paceline_crds.settings import EngineSettings, border_names, knobs
from paceline_engine.core.errors import StartFailed
from paceline_engine.core.unsupported import refuse_at_start

log = logging.getLogger(__name__)


def lay_over(booted: EngineSettings, file: Path) -> tuple[EngineSettings, int]:
    """Settings with the file's values, and the file's revision.

    A value above a boot maximum is lowered to it: the memory is planned. A name that this release
    does not know is ignored and logged, so that a newer operator can still start it.

    Args:
        booted: with every boot maximum resolved.
        file: JSON with `revision` and `settings`.

    Raises:
        StartFailed: InvalidSettings: no such file, another format, a value out of its bounds, or
            one that needs a restart.
    """
    revision, values = _read(file)
    update: dict[str, Any] = {}
    for label, value in values.items():
        name = border_names().get(label)
        if name is None:
            log.warning("settings file: %s is no setting of this release; it is ignored", label)
            continue
        knob = knobs()[name]
        if knob.change is not ChangeClass.LIVE:
            raise _failed(file, f"{label} needs a restart; give it as a flag")
        most = getattr(booted, knob.boot_maximum) if knob.boot_maximum else None
        is_above = most is not None and isinstance(value, int) and value > most
        update[label] = most if is_above else value
    try:
        settings = EngineSettings.model_validate({**booted.on_border(), **update})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _failed(file, f"{place}: {first['msg']}, got {first['input']!r}") from error
    refuse_at_start(settings)
    return settings, revision


def _read(file: Path) -> tuple[int, dict[str, Any]]:
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _failed(file, f"it cannot be read as JSON: {error}") from error
    revision = body.get("revision") if isinstance(body, dict) else None
    values = body.get("settings") if isinstance(body, dict) else None
    if type(revision) is not int or revision < 0 or not isinstance(values, dict):
        raise _failed(file, 'it must be like {"revision": 7, "settings": {"maxNumSeqs": 64}}')
    return revision, values


def _failed(file: Path, what: str) -> StartFailed:
    return StartFailed("InvalidSettings", f"settings file {file}: {what}")

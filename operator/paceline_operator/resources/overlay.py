"""Which value wins: the tuner's overlay, laid over what spec, objective and defaults give.

An entry of the overlay remembers the base that it replaced, value and source. It holds as long as a
freshly computed base is the same and spec still allows it; a dropped entry never comes back by
itself.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from paceline_crds.group import bare
from paceline_crds.objective import Resolved
from paceline_crds.settings import EngineSettings, border_name, border_names, knobs
from paceline_crds.source import Source
from paceline_crds.spec import LLMDeploymentSpec
from paceline_crds.spec_tuning import TuningMode
from paceline_crds.status import EffectiveSetting
from paceline_crds.status_tuning import OverlayEntry

_LONGEST_TEXT = 128


class DropReason(StrEnum):
    """Why an entry of the overlay no longer holds."""

    TUNING_OFF = "TuningOff"
    NOT_TUNABLE = "NotTunable"
    BASE_CHANGED = "BaseChanged"
    PINNED = "Pinned"
    OUT_OF_BOUNDS = "OutOfBounds"
    ABOVE_BOOT_MAXIMUM = "AboveBootMaximum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """An entry that was taken out, and why."""

    entry: OverlayEntry
    reason: DropReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The settings that pods should have.

    Attributes:
        settings: with the overlay; `model_fields_set` holds what anybody set.
        sources: snake_case name -> who gave the value.
        kept: entries of the overlay in force.
        dropped: entries that no longer hold.
    """

    settings: EngineSettings
    sources: Mapping[str, Source]
    kept: tuple[OverlayEntry, ...]
    dropped: tuple[Dropped, ...]

    def effective(self) -> list[EffectiveSetting]:
        """As `status.effective` shows it, in the settings' order; times are the caller's."""
        return [
            EffectiveSetting(
                name=border_name(name),
                value=text_of(getattr(self.settings, name)),
                source=self.sources[name],
            )
            for name in knobs()
        ]


def text_of(value: Any) -> str:
    """A setting's value as status shows it; empty where nobody set it and the engine decides."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return _list_text(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _list_text(entries: Sequence[Any]) -> str:
    """A list as JSON, or how many and a digest if that is longer than status holds."""
    plain = [
        entry.model_dump(mode="json", by_alias=True) if isinstance(entry, BaseModel) else entry
        for entry in entries
    ]
    given = [
        {name: value for name, value in entry.items() if value is not None}
        if isinstance(entry, dict)
        else entry
        for entry in plain
    ]
    text = json.dumps(given, sort_keys=True, separators=(",", ":"))
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{len(given)} entries, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def entry(base: Resolved, name: str, value: Any) -> OverlayEntry:
    """The entry that puts a value over the present base."""
    return OverlayEntry(
        name=border_name(name),
        value=text_of(value),
        base=text_of(getattr(base.settings, name)),
        base_source=base.sources[name],
    )


def lay_over(base: Resolved, overlay: Sequence[OverlayEntry], spec: LLMDeploymentSpec) -> Wanted:
    """Put the entries that still hold over the base."""
    settings, sources = base.settings, dict(base.sources)
    kept: list[OverlayEntry] = []
    dropped: list[Dropped] = []
    for item in overlay:
        reason = _reason_to_drop(base, item, spec)
        changed = None if reason else _with(settings, border_names()[item.name], item.value)
        if changed is None:
            dropped.append(Dropped(entry=item, reason=reason or DropReason.ABOVE_BOOT_MAXIMUM))
            continue
        settings = changed
        sources[border_names()[item.name]] = Source.TUNER
        kept.append(item)
    return Wanted(settings=settings, sources=sources, kept=tuple(kept), dropped=tuple(dropped))


def may_touch(spec: LLMDeploymentSpec, base: Resolved, name: str) -> bool:
    """Whether the tuner may move a setting: what spec pins, only if its bounds name it."""
    if not knobs()[name].tunable:
        return False
    return base.sources[name] is not Source.SPEC or bounds_of(spec, name) is not None


def _reason_to_drop(
    base: Resolved, item: OverlayEntry, spec: LLMDeploymentSpec
) -> DropReason | None:
    name = border_names().get(item.name)
    if spec.tuning is not None and spec.tuning.mode is TuningMode.OFF:
        return DropReason.TUNING_OFF
    if name is None or not knobs()[name].tunable or value_of(name, item.value) is None:
        return DropReason.NOT_TUNABLE
    if (item.base, item.base_source) != (
        text_of(getattr(base.settings, name)),
        base.sources[name],
    ):
        return DropReason.BASE_CHANGED
    if not may_touch(spec, base, name):
        return DropReason.PINNED
    if not _within(bounds_of(spec, name), value_of(name, item.value)):
        return DropReason.OUT_OF_BOUNDS
    return None


def bounds_of(spec: LLMDeploymentSpec, name: str) -> Any:
    """What `tuning.bounds` says of a setting (snake_case), None if it does not name it."""
    if spec.tuning is None or spec.tuning.bounds is None:
        return None
    return spec.tuning.bounds.given(name)


def _within(bounds: Any, value: Any) -> bool:
    if bounds is None:
        return True
    if "allowed" in type(bounds).model_fields:
        return value in bounds.given("allowed")
    least, most = bounds.given("min"), bounds.given("max")
    number = float if isinstance(value, str) else int
    return (least is None or number(least) <= number(value)) and (
        most is None or number(value) <= number(most)
    )


def value_of(name: str, text: str) -> Any:
    """A setting's value from its text, or None if it is not one."""
    try:
        return _adapter(name).validate_python(text)
    except ValidationError:
        return None


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(bare(name))


def _with(settings: EngineSettings, name: str, text: str) -> EngineSettings | None:
    """The settings with one changed, or None if that lies above a boot maximum.

    They are not validated as a start would be: drafts of 0 are no way to start a method, but a
    running engine can be turned down to them.
    """
    value, boot = value_of(name, text), knobs()[name].boot_maximum
    limit = getattr(settings, boot) if boot else None
    if limit is not None and value > limit:
        return None
    return settings.model_copy(update={name: value})

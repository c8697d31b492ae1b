"""The reference of all settings, as Markdown."""

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from paceline_crds import flags, phrases
from paceline_crds.group import bare, is_duration
from paceline_crds.objective import STARTING_VALUES, device_values
from paceline_crds.settings import EngineSettings, border_name, knobs

_HEAD = """\
# Settings

Every setting is declared once, in `crds/paceline_crds/settings.py`. Manifest, flags, the live
settings API, the tuner and this page are made from that declaration.

- **name**: in `PATCH /v1/paceline/settings`, `status.effective`, `tuning.bounds` and metrics.
- **flag**: of `paceline serve`. Words may also be written in lower case.
- **spec**: place in an LLMDeployment; `(duration)` marks a value such as `500ms` or `1h30m` there.
- **change**: `live` takes effect between two steps of a running engine, `restart` needs a new
  process (a new pod), `immutable` never changes. *tuned* marks what the tuner may move. What a
  release does not build yet is refused, live too, and noted behind the description.

A setting that is absent is not pinned: its objective, else the engine fills it in. Which value
wins: tuner > spec > objective > default.
"""

_COLUMNS = ("name", "flag", "spec", "type", "default", "bounds", "unit", "change", "what it is")


def markdown() -> str:
    """The whole page."""
    parts = [_HEAD, "\n".join(_settings_table()), _OBJECTIVES, "\n".join(_objectives_table())]
    return "\n".join(parts) + "\n"


def _settings_table() -> Iterator[str]:
    yield _row(_COLUMNS)
    yield _row(["---"] * len(_COLUMNS))
    for name in knobs():
        yield _row(_cells(name))


def _cells(name: str) -> list[str]:
    field, knob = EngineSettings.model_fields[name], knobs()[name]
    place = f"`spec.{knob.spec}`" if knob.spec else "-"
    fragment = TypeAdapter(bare(name)).json_schema()
    return [
        f"`{border_name(name)}`",
        f"`{flags.flag_of(name)}`",
        place + (" (duration)" if knob.spec and is_duration(knob) else ""),
        _type_of(fragment),
        f"`{flags.default_text(name)}`" if field.default is not None else "-",
        phrases.expected(fragment) if fragment.get("type") != "boolean" else "-",
        knob.unit or "-",
        f"{knob.change}" + (", tuned" if knob.tunable else ""),
        flags.described(name),
    ]


_LONGEST_DECIMAL = 8


def _type_of(fragment: dict[str, Any]) -> str:
    if "enum" in fragment:
        return "word"
    if fragment.get("x-kubernetes-int-or-string"):
        return "quantity"
    if fragment["type"] == "string":
        is_decimal = "maxLength" in fragment and fragment["maxLength"] <= _LONGEST_DECIMAL
        return "decimal as text" if is_decimal else "text"
    if fragment["type"] == "array":
        return "list"
    return str(fragment["type"])


_OBJECTIVES = """
## Starting values

What `spec.objective` starts with; without one, what the device starts with. A range means starting
value - boot maximum; a single value has twice itself as its boot maximum. A value that spec pins
wins, and a starting value never exceeds a boot maximum that spec pins.
"""


def _objectives_table() -> Iterator[str]:
    names = ["max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization"]
    yield _row(["objective", *(f"`{border_name(name)}`" for name in names)])
    yield _row(["---"] * (len(names) + 1))
    for objective, values in STARTING_VALUES.items():
        yield _row([f"`{objective}`", *(_range(name, values) for name in names)])
    for label, memory in (
        ("none, GPU of 70 GB or more", 80_000_000_000),
        ("none, other GPU", 24_000_000_000),
        ("none, CPU", None),
    ):
        yield _row([label, *(_range(name, device_values(memory)) for name in names)])


def _range(name: str, values: Any) -> str:
    if name not in values:
        return f"{flags.default_text(name)}"
    boot = knobs()[name].boot_maximum
    return f"{values[name]}-{values[boot]}" if boot in values else str(values[name])


def _row(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

"""pydantic's findings as sentences: what, expected, got, what to do."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from paceline_crds import phrases

Loc = Sequence[int | str]


def sentences(error: ValidationError, schema: Mapping[str, Any]) -> list[str]:
    """One sentence for each finding.

    Args:
        error: raised by a model that reports aliases.
        schema: the model's structural schema.
    """
    return [text for item in error.errors() for text in _sentences(item, schema)]


def path_of(loc: Loc) -> str:
    """`("spec", "env", 0, "name")` -> `spec.env[0].name`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _sentences(item: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    loc: Loc = [part for part in item["loc"] if part != "[key]"]
    path, value = path_of(loc), item["input"]
    if item["type"] == "rule":
        for text in item["ctx"]["text"].split("\n"):
            if text.startswith("must "):
                yield f"{path} {text} (got {phrases.got(value)})"
            else:
                yield f"{path}: {text}" if path else text
    elif item["type"] == "missing":
        wanted = phrases.expected(_fragment(schema, loc))
        yield f"{path} is missing; add it: {wanted}"
    elif item["type"] == "extra_forbidden":
        yield f"{path} is unknown; {_instead(schema, loc)}"
    else:
        wanted = phrases.expected(_fragment(schema, loc))
        yield f"{path} must be {wanted}, got {phrases.got(value)}; {_advice(path, value, wanted)}"


def _advice(path: str, value: Any, wanted: str) -> str:
    if isinstance(value, bool) and wanted.startswith(("one of", "text", "a duration")):
        return "YAML reads On, Off, Yes and No as booleans: put the word in quotes"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and ("text" in wanted or wanted.startswith("a quantity")):
        return f'put the number in quotes: "{value}"'
    return f"change {path} or remove it"


def _instead(schema: Mapping[str, Any], loc: Loc) -> str:
    names = list(_fragment(schema, loc[:-1]).get("properties", {}))
    close = difflib.get_close_matches(str(loc[-1]), names, n=1)
    where = path_of(loc[:-1]) or "the manifest"
    if close:
        return f"did you mean {close[0]}? Rename or remove it"
    return f"{where} has {', '.join(names)}; use one of these or remove it"


def _fragment(schema: Mapping[str, Any], loc: Loc) -> Mapping[str, Any]:
    node = schema
    for part in loc:
        if isinstance(part, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
    return node

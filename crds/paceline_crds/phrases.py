"""What a value must be, in words, from a fragment of JSON schema."""

import json
from collections.abc import Mapping
from typing import Any

from paceline_crds import durations

_PATTERNS = {
    durations.PATTERN: "a duration such as 500ms, 2s or 1h30m",
    durations.PATTERN_WHOLE_SECONDS: "a duration in whole seconds such as 2s or 1h30m",
    r"^(0\.[0-9]{1,4}|1(\.0{1,4})?)$": 'a decimal from 0 to 1 as text, such as "0.92"',
    r"^0(\.[0-9]{1,4})?$": 'a decimal below 1 as text, such as "0.01"',
    r"^0\.[5-9][0-9]{0,3}$": 'a decimal from 0.5 to 0.9999 as text, such as "0.99"',
    r"^([01][0-9]|2[0-3]):[0-5][0-9]$": 'a time of day such as "22:00"',
    r"^--[a-z0-9][a-z0-9-]*(=.*)?$": "a flag as --name or --name=value",
}


def expected(fragment: Mapping[str, Any]) -> str:
    """`an integer from 1 to 8`, `one of Auto, FP8`, `a duration such as 500ms`..."""
    if fragment.get("x-kubernetes-int-or-string"):
        return "a quantity such as 500m, 2 or 16Gi"
    if "enum" in fragment:
        values = fragment["enum"]
        return str(values[0]) if len(values) == 1 else f"one of {', '.join(values)}"
    kind = fragment.get("type")
    if kind == "integer":
        return _integer(fragment)
    if kind == "boolean":
        return "true or false"
    if kind == "string":
        return _text(fragment)
    if kind == "array":
        return f"a list of {_between(fragment.get('minItems', 0), fragment['maxItems'])} entries"
    names = fragment.get("properties")
    return f"a map with {', '.join(names)}" if names else "a map"


def got(value: Any) -> str:
    """A value as it was written, shortened; half characters, which nothing can carry, escaped."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 60 else text[:57] + "..."


def _integer(fragment: Mapping[str, Any]) -> str:
    least, most = fragment.get("minimum"), fragment.get("maximum")
    step = fragment.get("multipleOf")
    what = f"a multiple of {step}" if step else "an integer"
    if least is not None and most is not None:
        return f"{what} from {least} to {most}"
    if least is not None:
        return f"{what} >= {least}"
    return what if most is None else f"{what} <= {most}"


def _text(fragment: Mapping[str, Any]) -> str:
    pattern = fragment.get("pattern")
    if pattern in _PATTERNS:
        return _PATTERNS[pattern]
    size = ""
    if "maxLength" in fragment:
        size = f" of {_between(fragment.get('minLength', 0), fragment['maxLength'])} characters"
    return f"text{size}" + (f" that matches {pattern}" if pattern else "")


def _between(least: int, most: int) -> str:
    return f"at most {most}" if least == 0 else f"{least} to {most}"

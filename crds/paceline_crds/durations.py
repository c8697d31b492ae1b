"""Durations as text, in the format of the Gateway API (GEP-2257): `500ms`, `2s`, `1h30m`.

At most four parts, each a whole number of at most five digits with one of h, m, s, ms: it is a
subset of Go's format, and CEL's `duration()` reads it too.
"""

import re

PATTERN = r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"
PATTERN_WHOLE_SECONDS = r"^([0-9]{1,5}(h|m|s)){1,4}$"
MAX_LENGTH = 28

_MS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART = re.compile(r"([0-9]+)(ms|h|m|s)")


def parse_ms(text: str) -> int:
    """Milliseconds of a duration.

    Raises:
        ValueError: the text is no duration.
    """
    if not re.fullmatch(PATTERN.strip("^$"), text):
        raise ValueError(f'a duration like "500ms", "2s" or "1h30m" was expected, got {text!r}')
    return sum(int(number) * _MS[unit] for number, unit in _PART.findall(text))


def format_ms(value_ms: int) -> str:
    """The shortest text of a duration; `parse_ms` reads it back."""
    if value_ms == 0:
        return "0s"
    parts = []
    for unit, size in _MS.items():
        number, value_ms = divmod(value_ms, size)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts)

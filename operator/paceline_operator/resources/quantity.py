"""Quantities of the Kubernetes API: `500m`, `2`, `16Gi`, `1e3`; equal values have many texts."""

import re
from decimal import Decimal
from typing import Any

_FORM = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([eE][+-]?[0-9]+|[A-Za-z]*)")
_FACTOR = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{unit + "i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}


def parse(value: Any) -> Decimal | None:
    """The number that a quantity means, None if it is no quantity."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return Decimal(str(value))
    if not isinstance(value, str) or not (found := _FORM.fullmatch(value.strip())):
        return None
    number, suffix = Decimal(found[1]), found[2]
    if suffix[:1] in {"e", "E"} and len(suffix) > 1 and not suffix.isalpha():
        exponent = int(suffix[1:])
        return number.scaleb(exponent) if abs(exponent) <= 30 else None
    factor = _FACTOR.get(suffix)
    return None if factor is None else number * factor


def are_equal(one: Any, other: Any) -> bool:
    """Whether two texts mean the same amount; what is no quantity is compared as it stands."""
    first, second = parse(one), parse(other)
    return one == other if first is None or second is None else first == second


def canonical(value: Any) -> Any:
    """One text for each amount, for hashing; not for people and not for the API."""
    amount = parse(value)
    return value if amount is None else format(amount.normalize(), "f")

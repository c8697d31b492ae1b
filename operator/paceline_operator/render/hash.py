"""The hash of a whole pod template: equal meaning gives an equal hash, anything else another."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from paceline_operator.resources import quantity

LENGTH = 10
_QUANTITY_MAPS = ("limits", "requests")
_QUANTITY_FIELDS = ("sizeLimit",)


def of_template(template: Mapping[str, Any]) -> str:
    """Ten hex digits of SHA-256 over canonical JSON.

    Quantities count by their amount: `1` and `1000m` of CPU are the same pod.
    """
    return hashlib.sha256(canonical_json(amounts(template)).encode()).hexdigest()[:LENGTH]


def canonical_json(value: Any) -> str:
    """One text for equal JSON values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def amounts(value: Any) -> Any:
    """A copy in which every quantity stands in its canonical form."""
    if isinstance(value, Mapping):
        return {key: _field(key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [amounts(item) for item in value]
    return value


def _field(key: str, value: Any) -> Any:
    if key in _QUANTITY_MAPS and isinstance(value, Mapping):
        return {name: quantity.canonical(amount) for name, amount in value.items()}
    if key in _QUANTITY_FIELDS:
        return quantity.canonical(value)
    return amounts(value)

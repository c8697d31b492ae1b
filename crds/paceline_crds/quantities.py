"""Kubernetes quantities such as 500m, 2 or 16Gi: their form, and what they mean."""

from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, StringConstraints, WithJsonSchema

_PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"  # no sign, no exponent
_FACTORS = {
    "m": Decimal("1e-3"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{unit + "i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    BeforeValidator(_number_as_text),
    StringConstraints(max_length=32, pattern=_PATTERN),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _PATTERN,
            "maxLength": 32,
            "minimum": 0,
            "maximum": 999_999_999_999_999,
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""A Kubernetes quantity such as 500m, 2 or 16Gi."""


def number_of(quantity: str) -> Decimal:
    """The number that a `Quantity` means; plain decimals are quantities, too."""
    digits = quantity.rstrip("mkMGTPEKi")
    return Decimal(digits) * _FACTORS.get(quantity[len(digits) :], Decimal(1))

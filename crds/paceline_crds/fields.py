"""Kinds of values that fields of the resource share, each bounded."""

from typing import Annotated, Any

from pydantic import Field, StringConstraints, WithJsonSchema

from paceline_crds import durations, quantities, texts
from paceline_crds.group import Group
from paceline_crds.rules import duration_between

Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
"""Any short text."""

LongText = Annotated[str, StringConstraints(max_length=4096)]
"""A message for people."""

ObjectName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
]
"""The name of an object in the same namespace."""

Key = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
"""A key of a Secret or a ConfigMap."""

ItemName = texts.ItemName
Share = texts.Share

LabelValue = Annotated[
    str, StringConstraints(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
]

Quantity = quantities.Quantity

Labels = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=317)], LabelValue],
    Field(max_length=32),
]

Timestamp = Annotated[
    str,
    StringConstraints(max_length=40),
    WithJsonSchema({"type": "string", "format": "date-time", "maxLength": 40}),
]
"""RFC 3339, UTC."""

Count = Annotated[int, Field(ge=0, le=2**53)]
"""A whole number that fits every JSON reader."""


def _duration(least_ms: int, most_ms: int) -> Any:
    return Annotated[
        str,
        StringConstraints(pattern=durations.PATTERN, max_length=durations.MAX_LENGTH),
        duration_between(least_ms, most_ms),
    ]


_S, _H = 1_000, 3_600_000
UpToADay = _duration(0, 24 * _H)
UpToAWeek = _duration(0, 7 * 24 * _H)
TenSecondsToADay = _duration(10 * _S, 24 * _H)
MinutesToAWeek = _duration(60 * _S, 7 * 24 * _H)
OneSecondToAnHour = _duration(1 * _S, 1 * _H)


class KeyRef(Group):
    """One key of a Secret or ConfigMap in the same namespace."""

    name: ObjectName
    """Name of the object."""
    key: Key
    """Key within it."""

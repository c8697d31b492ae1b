"""Tenants of policy Fair: the entries of the setting `tenants`, the same on every border."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from paceline_crds.rules import ListType
from paceline_crds.strict_model import StrictModel
from paceline_crds.texts import ItemName, Share

MAX_DECLARED = 64


class Tenant(StrictModel):
    """A client group that gets its share under policy Fair."""

    name: ItemName
    """Name as in the API-key file."""
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Share of served tokens relative to the other tenants. Default: 1."""
    max_seqs: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Most running requests of this tenant. Default: no limit of its own."""
    budget_share: Share = "1"
    """Most of a step's token budget, as a decimal in text. Default: "1"."""


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Tenants = Annotated[
    tuple[Tenant, ...],
    Field(max_length=MAX_DECLARED),
    ListType(("name",)),
    BeforeValidator(_as_tuple),
]
"""Entries with different names."""

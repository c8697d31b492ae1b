"""Tenants of policy Fair: the entries of the setting `tenants`, the same on every border."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from paceline_crds.rules import ListType
from paceline_crds.texts import ItemName, Share

MAX_DECLARED = 64


class Tenant(BaseModel):
    """A client group that gets its share under policy Fair."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )

    name: ItemName
    """Name as in the API-key file."""
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Share of served tokens relative to the other tenants. Default: 1."""
    max_seqs: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Most running requests of this tenant. Default: no limit of its own."""
    budget_share: Share = "1"
    """Most of a step's token budget, as a decimal in text. Default: "1"."""

    @model_validator(mode="before")
    @classmethod
    def _nulls_are_absent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Tenants = Annotated[
    tuple[Tenant, ...],
    Field(max_length=MAX_DECLARED),
    ListType(("name",)),
    BeforeValidator(_as_tuple),
]
"""Entries with different names."""

"""What types and bounds cannot say: rules, and the list types of the Kubernetes API.

A rule is one CEL expression for the API server and the same check in Python for a manifest that
is loaded on a laptop, with one message for both.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from paceline_crds import durations

VALIDATIONS = "x-kubernetes-validations"


def broken(message: str) -> PydanticCustomError:
    """The error of a rule that does not hold; `problems` knows it by its type."""
    return PydanticCustomError("rule", "{text}", {"text": message})


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule on a value; used in a group's `rules` or as metadata in `Annotated`.

    Attributes:
        cel: the expression; `self` is the value.
        message: fixed text (a computed one exceeds the server's cost limit): what is expected and
            what to do.
        holds: the same check in Python, on the validated value.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool]

    def as_schema(self) -> dict[str, str]:
        """The entry of `x-kubernetes-validations`."""
        return {"rule": self.cel, "message": self.message}

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        json_schema = handler(schema)
        json_schema.setdefault(VALIDATIONS, []).append(self.as_schema())
        return json_schema

    def _check(self, value: Any) -> Any:
        if not self.holds(value):
            raise broken(self.message)
        return value


def duration_between(least_ms: int, most_ms: int) -> Rule:
    """A duration's bounds, both inclusive."""
    least, most = durations.format_ms(least_ms), durations.format_ms(most_ms)
    return Rule(
        f"duration(self) >= duration('{least}') && duration(self) <= duration('{most}')",
        f"must be a duration from {least} to {most}; write one in this range",
        lambda text: least_ms <= durations.parse_ms(text) <= most_ms,
    )


@dataclass(frozen=True, slots=True)
class ListType:
    """`x-kubernetes-list-type`: a map by the keys given (camelCase), else a set.

    Atomic is for lists of objects without a key: the server knows no sets of objects.
    """

    keys: tuple[str, ...] = ()
    atomic: bool = False

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._unique, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        json_schema = handler(schema)
        kind = "map" if self.keys else "atomic" if self.atomic else "set"
        json_schema["x-kubernetes-list-type"] = kind
        if self.keys:
            json_schema["x-kubernetes-list-map-keys"] = list(self.keys)
        return json_schema

    def _unique(self, items: list[Any]) -> list[Any]:
        if self.atomic:
            return items
        seen: set[Hashable] = set()
        for item in items:
            key = self._key(item)
            if key in seen:
                what = ", ".join(self.keys) or "value"
                raise broken(f"has two entries with the same {what} ({key}); remove one")
            seen.add(key)
        return items

    def _key(self, item: Any) -> Hashable:
        if not self.keys:
            return str(item)
        dumped = item.model_dump(mode="json", by_alias=True)
        return ", ".join(str(dumped.get(key)) for key in self.keys)

"""A pydantic model as a structural schema (OpenAPI v3), as a CustomResourceDefinition wants it."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from paceline_crds.errors import ContractError

_DROPPED = {"title", "default", "additionalProperties", "uniqueItems", "const", "examples"}
DEFAULTED = {("replicas",), ("service", "port")}
"""Fields below spec that carry a schema default: nobody but the user ever sets them."""


def structural(model: type[BaseModel], *, keep_defaults: bool = False) -> dict[str, Any]:
    """The model's schema without references, unions with null, titles and unknown-field rules.

    Args:
        model: its JSON schema by alias is taken.
        keep_defaults: keep the defaults of `DEFAULTED` (paths below this model).
    """
    document = model.model_json_schema(by_alias=True)
    definitions = document.pop("$defs", {})
    return _convert(document, definitions, ((), keep_defaults))


def _convert(
    node: Mapping[str, Any], definitions: Mapping[str, Any], at: tuple[tuple[str, ...], bool]
) -> dict[str, Any]:
    path, keep_defaults = at
    merged = _flatten(node, definitions)
    out = {key: value for key, value in merged.items() if key not in _DROPPED}
    if "const" in merged:
        out["enum"] = [merged["const"]]
    if keep_defaults and path in DEFAULTED:
        out["default"] = merged["default"]
    if out.get("type") == "integer":
        out["format"] = "int64"
    if "properties" in out:
        out["properties"] = {
            name: _convert(child, definitions, ((*path, name), keep_defaults))
            for name, child in out["properties"].items()
        }
    elif isinstance(merged.get("additionalProperties"), dict):
        values = merged["additionalProperties"]
        out["additionalProperties"] = _convert(values, definitions, ((*path, "*"), keep_defaults))
        out.pop("propertyNames", None)
    if "items" in out:
        out["items"] = _convert(out["items"], definitions, ((*path, "*"), keep_defaults))
    return _ordered(out)


def _flatten(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve $ref and `anyOf [X, null]`; what the field says wins over what its type says."""
    out = dict(node)
    options = out.get("anyOf")
    if options is not None and not out.get("x-kubernetes-int-or-string"):
        real = [option for option in options if option.get("type") != "null"]
        if len(real) != 1:
            raise ContractError(f"a union of {len(real)} types has no structural schema: {node}")
        del out["anyOf"]
        out = {**_flatten(real[0], definitions), **out}
    reference = out.pop("$ref", None)
    if reference is not None:
        out = {**_flatten(definitions[reference.rpartition("/")[2]], definitions), **out}
    return out


def _ordered(node: dict[str, Any]) -> dict[str, Any]:
    first = ["description", "type", "format", "default", "enum", "minimum", "maximum"]
    last = ["required", "properties", "items", "x-kubernetes-validations"]
    middle = sorted(key for key in node if key not in first and key not in last)
    return {key: node[key] for key in (*first, *middle, *last) if key in node}

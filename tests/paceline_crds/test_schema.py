"""The CRD is a structural schema, bounded everywhere, without floats and with two defaults."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from paceline_crds import crd, schema
from paceline_crds.errors import ContractError
from paceline_crds.settings import knobs
from paceline_crds.spec import value_at
from paceline_crds.spec_tuning import Bounds

ROOT = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
FORBIDDEN = {"$ref", "$defs", "oneOf", "allOf", "not", "uniqueItems", "title", "const"}


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from nodes(node["additionalProperties"], f"{path}.*")


ALL = [(path, node) for path, node in nodes(ROOT) if path not in {"", ".metadata"}]


def defect(path: str, node: dict[str, Any]) -> str | None:
    """What breaks the rules of structural schemas or our own bounds, or None."""
    kind = node.get("type")
    if FORBIDDEN & node.keys():
        return f"has {FORBIDDEN & node.keys()}"
    if node.get("x-kubernetes-int-or-string"):
        return None if kind is None and "maxLength" in node else "int-or-string without bound"
    if kind not in {"object", "array", "string", "integer", "boolean"}:
        return f"has type {kind}"
    if "description" not in node and not path.endswith(("[]", ".*")):
        return "has no description"
    if kind == "object":
        if ("properties" in node) == ("additionalProperties" in node):
            return "must have either properties or additionalProperties"
        return None if "properties" in node or "maxProperties" in node else "an unbounded map"
    if kind == "array":
        return None if {"maxItems", "x-kubernetes-list-type"} <= node.keys() else "unbounded list"
    if kind == "string" and path not in {".apiVersion", ".kind"}:
        return None if {"maxLength", "enum"} & node.keys() else "an unbounded string"
    if kind == "integer":
        return None if {"minimum", "maximum"} <= node.keys() else "an unbounded integer"
    return None


def test_every_node_is_structural_described_and_bounded() -> None:
    defects = {path: what for path, node in ALL if (what := defect(path, node))}
    assert defects == {}


def test_defaults_are_only_on_replicas_and_the_port() -> None:
    defaults = {path: node["default"] for path, node in ALL if "default" in node}
    assert defaults == {".spec.replicas": 1, ".spec.service.port": 8000}


def test_enums_are_camel_case_words() -> None:
    for path, node in ALL:
        for word in node.get("enum", []):
            assert word[0].isupper(), path
            assert word.isalnum(), path


def test_lists_are_maps_or_sets() -> None:
    atomic = [path for path, node in ALL if node.get("x-kubernetes-list-type") == "atomic"]
    tolerations = ".spec.podTemplate.tolerations"  # a set of objects: the server knows none
    effective = ".status.effective"  # whose owners by field would be as long as itself
    assert atomic == [tolerations, effective]


def test_keys_of_list_maps_are_required() -> None:
    for path, node in ALL:
        if node.get("x-kubernetes-list-type") == "map":
            keys = set(node["x-kubernetes-list-map-keys"])
            assert keys <= set(node["items"]["required"]), path


def test_every_setting_with_a_place_in_spec_is_in_the_schema() -> None:
    paths = {path for path, _ in ALL}
    for knob in knobs().values():
        assert not knob.spec or f".spec.{knob.spec}" in paths, knob.spec


def test_every_tunable_setting_and_no_other_has_bounds() -> None:
    assert set(Bounds.model_fields) == {name for name, knob in knobs().items() if knob.tunable}


def test_a_union_that_no_structural_schema_can_say_is_refused() -> None:
    class Model(BaseModel):
        field: int | bool

    with pytest.raises(ContractError, match="a union of 2 types"):
        schema.structural(Model)


def test_a_place_below_an_absent_object_has_no_value() -> None:
    assert value_at(None, "scheduling.maxNumSeqs") is None

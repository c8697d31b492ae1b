"""Whether an object in the cluster is what is wanted, so that nothing is written twice.

Two questions: is every wanted value there (quantities by their amount, defaults of the server
allowed), and does our manager own nothing beyond it (else a key that is no longer wanted would
stay for ever)? Both are answered from the live object alone.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from paceline_operator.decide.observed import Object
from paceline_operator.resources import objects, quantity

_QUANTITIES = frozenset({"limits", "requests", "sizeLimit"})
_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
    "ports": ("containerPort", "port", "protocol"),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Lists that the server merges by key, in the objects that we write."""
_NEVER_OURS = frozenset({"uid", "resourceVersion"})


def needs_write(desired: Object, live: Object, manager: str) -> bool:
    """Whether applying `desired` would change the live object or what our manager owns."""
    return not is_within(desired, live) or owns_more(desired, live, manager)


def is_within(desired: Any, live: Any, key: str = "", *, is_amount: bool = False) -> bool:
    """Whether every wanted value stands in the live one.

    Args:
        desired: any JSON value.
        live: the same place in the live object; None if absent.
        key: name of the field, for lists and quantities.
        is_amount: the values are quantities.
    """
    if type(desired) is str and not is_amount and key not in _QUANTITIES:
        return type(live) is str and desired == live
    if objects.is_mapping(desired):
        if not objects.is_mapping(live):
            return not desired and live is None
        amounts = key in _QUANTITIES
        for name, value in desired.items():
            if not is_within(value, live.get(name), name, is_amount=amounts):
                return False
        return True
    if isinstance(desired, list | tuple):
        return _list_is_within(desired, live, key)
    if is_amount or key in _QUANTITIES:
        return quantity.are_equal(desired, live)
    return type(desired) is type(live) and bool(desired == live)


def owns_more(desired: Object, live: Object, manager: str) -> bool:
    """Whether our manager owns a field that is not wanted any more."""
    fields = owned_fields(live, manager)
    return fields is not None and _has_more(fields, desired)


def owned_fields(live: Object, manager: str) -> Mapping[str, Any] | None:
    """`fieldsV1` of our applies, None if there was none."""
    for entry in objects.items(live, "metadata", "managedFields"):
        if (
            entry.get("manager") == manager
            and entry.get("operation") == "Apply"
            and not entry.get("subresource")
        ):
            return objects.mapping(entry, "fieldsV1")
    return None


def ours_of(live: Object, manager: str) -> dict[str, Any] | None:
    """The manifest that our manager applied, taken out of the live object.

    An old template is applied again with this when only its count changes; it cannot be rendered
    any more. None if nothing was ever applied.
    """
    fields = owned_fields(live, manager)
    if not fields:
        return None
    kept = dict(_project(fields, live))
    kept["apiVersion"], kept["kind"] = live.get("apiVersion"), live.get("kind")
    metadata = kept.setdefault("metadata", {})
    metadata["name"] = objects.name(live)
    metadata["namespace"] = objects.text(live, "metadata", "namespace")
    return kept


def _list_is_within(desired: Any, live: Any, key: str) -> bool:
    if not isinstance(live, list):
        return not desired and live is None
    keys = _KEYS.get(key)
    if keys is None or not all(map(objects.is_mapping, [*desired, *live])):
        return len(desired) == len(live) and all(
            is_within(one, other) for one, other in zip(desired, live, strict=True)
        )
    by_key = {_identity(item, keys): item for item in live}
    return all(
        (there := by_key.get(_identity(item, keys))) is not None and is_within(item, there)
        for item in desired
    )


def _identity(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(key, "TCP" if key == "protocol" else None) for key in keys)


def _has_more(fields: Mapping[str, Any], desired: Any) -> bool:
    for path, below in fields.items():
        kind, rest = path[:1], path[2:]
        if kind == "f":
            if not objects.is_mapping(desired) or rest not in desired:
                return True
            inner = desired[rest]
        elif kind == "k":
            inner = _member(desired, rest)
            if inner is None:
                return True
        elif kind == "v":
            if not isinstance(desired, list) or _value(rest) not in desired:
                return True
            continue
        else:
            continue
        if below and objects.is_mapping(below) and _has_more(below, inner):
            return True
    return False


def _project(fields: Mapping[str, Any], live: Any) -> Any:
    if isinstance(live, list):
        if not fields:
            return live
        # In the live order: managedFields sort their keys, and a template whose lists have another
        # order is another template, so its pods would be replaced.
        kept: list[tuple[int, Any]] = []
        for path, below in fields.items():
            kind, _, rest = path.partition(":")
            if kind == "k" and (item := _member(live, rest)) is not None:
                ours = (
                    {**(_value(rest) or {}), **_project(below, item)}
                    if isinstance(below, Mapping) and below
                    else item
                )
                kept.append((live.index(item), ours))
            elif kind == "v" and _value(rest) in live:
                kept.append((live.index(_value(rest)), _value(rest)))
        return [ours for _, ours in sorted(kept, key=lambda pair: pair[0])]
    if not isinstance(live, Mapping) or not fields or set(fields) == {"."}:
        return live
    found = {}
    for path, below in fields.items():
        kind, _, rest = path.partition(":")
        if kind == "f" and rest in live and rest not in _NEVER_OURS:
            found[rest] = (
                _project(below, live[rest]) if isinstance(below, Mapping) and below else live[rest]
            )
    return found


def _member(items: Any, key: str) -> Mapping[str, Any] | None:
    wanted = _value(key)
    if not isinstance(items, list) or not objects.is_mapping(wanted):
        return None
    for item in items:
        if objects.is_mapping(item) and all(
            item.get(name, "TCP" if name == "protocol" else None) == value
            for name, value in wanted.items()
        ):
            return item
    return None


@lru_cache(maxsize=1024)
def _value(text: str) -> Any:
    """What a key of managedFields says; the same few are read at each look. Not to be changed."""
    try:
        return json.loads(text)
    except ValueError:
        return None

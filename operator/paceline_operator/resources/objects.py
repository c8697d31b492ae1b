"""Reading plain objects of the API without surprises: a missing or odd field is never an error."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeGuard

Object = Mapping[str, Any]


def is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is a JSON object.

    JSON gives dicts; asking an abstract class costs three times as much, and it is asked a thousand
    times in a reconcile.
    """
    return type(value) is dict or isinstance(value, Mapping)


def at(value: Any, *path: str) -> Any:
    """The value at a path of keys, None where any part is absent or no mapping."""
    for key in path:
        if type(value) is not dict and not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def mapping(value: Any, *path: str) -> Mapping[str, Any]:
    """A mapping at a path, empty if there is none."""
    found = at(value, *path)
    return found if is_mapping(found) else {}


def items(value: Any, *path: str) -> list[Mapping[str, Any]]:
    """The mappings of the list at a path, empty if there is none."""
    found = at(value, *path)
    return [item for item in found if is_mapping(item)] if isinstance(found, list) else []


def text(value: Any, *path: str) -> str:
    """A text at a path, empty if there is none."""
    found = at(value, *path)
    return found if isinstance(found, str) else ""


def whole(value: Any, *path: str, default: int = 0) -> int:
    """A whole number at a path."""
    found = at(value, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else default


def name(item: Object) -> str:
    """`metadata.name`."""
    return text(item, "metadata", "name")


def uid(item: Object) -> str:
    """`metadata.uid`."""
    return text(item, "metadata", "uid")


def labels(item: Object) -> Mapping[str, str]:
    """`metadata.labels`."""
    return mapping(item, "metadata", "labels")


def annotation(item: Object, key: str) -> str:
    """One annotation, empty if absent."""
    return text(item, "metadata", "annotations", key)


def controller_uid(item: Object) -> str:
    """The uid of the owner that is the controller, empty if there is none."""
    for owner in items(item, "metadata", "ownerReferences"):
        if owner.get("controller") is True:
            return text(owner, "uid")
    return ""


def is_deleted(item: Object) -> bool:
    """Whether its deletion has begun."""
    return bool(at(item, "metadata", "deletionTimestamp"))


def condition(item: Object, kind: str) -> Mapping[str, Any]:
    """One condition of its status, empty if absent."""
    for found in items(item, "status", "conditions"):
        if found.get("type") == kind:
            return found
    return {}


def seconds(timestamp: Any) -> float | None:
    """Seconds since the epoch of an RFC 3339 text, None if it is none."""
    if not isinstance(timestamp, str):
        return None
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def timestamp(now: float) -> str:
    """RFC 3339 in UTC with whole seconds, as the API server writes it."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def created_at(item: Object) -> float:
    """When it was created, 0 if that is not known."""
    return seconds(at(item, "metadata", "creationTimestamp")) or 0.0

"""The objects that the operator has seen, newest version of each, whatever order news comes in.

News comes from watches, from whole lists and from the answers to the operator's own writes. Of two
versions of an object the higher resourceVersion wins, so nobody ever acts on something older than
the operator's own last write.
"""

from typing import Any

from paceline_operator.decide.observed import CHILD_KINDS
from paceline_operator.decide.tuning.state import Phase
from paceline_operator.render import names
from paceline_operator.resources import objects
from paceline_operator.resources.objects import Object
from paceline_operator.shell import kinds
from paceline_operator.shell.cluster import Listing

Key = tuple[str, str]
"""Namespace and name of an LLMDeployment."""
_CHANGING = frozenset(phase.value for phase in Phase if phase is not Phase.PROPOSED)
_UNREAD_ANNOTATIONS = frozenset(
    {"kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision"}
)


class Cache:
    """Objects by kind. Mutable; used from one event loop."""

    def __init__(self, field_manager: str) -> None:
        self._manager = field_manager
        self._objects: dict[str, dict[Key, Object]] = {kind.name: {} for kind in kinds.WATCHED}
        self._gone: dict[str, dict[Key, tuple[str, int]]] = {
            kind.name: {} for kind in kinds.WATCHED
        }
        self._families: dict[str, dict[Key, dict[str, Object]]] = {
            kind.name: {} for kind in kinds.WATCHED
        }
        self._changing: set[Key] = set()

    def deployment(self, key: Key) -> Object | None:
        """One LLMDeployment."""
        return self._objects[kinds.LLM_DEPLOYMENT.name].get(key)

    def deployments(self) -> tuple[Key, ...]:
        """Every LLMDeployment."""
        return tuple(self._objects[kinds.LLM_DEPLOYMENT.name])

    def num_changing(self, besides: Key) -> int:
        """Other LLMDeployments with a tuner's change in flight, by their status.

        Every look asks this, so it is kept: to count it would be work that grows with the square
        of the number of deployments.
        """
        return len(self._changing) - (besides in self._changing)

    def family(self, kind: str, key: Key) -> tuple[Object, ...]:
        """Objects of a kind whose label names an LLMDeployment."""
        return tuple(self._families[kind].get(key, {}).values())

    def count(self, kind: str) -> int:
        """How many objects of a kind are known."""
        return len(self._objects[kind])

    def uids(self, kind: str) -> set[str]:
        """Of all known objects of a kind."""
        return {objects.uid(item) for item in self._objects[kind].values()}

    def see(self, kind: str, item: Object) -> bool:
        """Take news of an object; returns whether it may change a plan.

        A controller that writes the status of a Deployment, or another manager's fields, gives the
        object a new version (the next write is planned from it) and nobody anything to do.
        """
        place, version = _place(item), _version(item)
        known = self._objects[kind].get(place)
        if known is not None and _version(known) >= version:
            return False
        gone = self._gone[kind].get(place)
        if gone is not None and gone[1] >= version:
            return False
        self._gone[kind].pop(place, None)
        if known is not None:
            self._leave_family(kind, known)
        slim = self._slim(kind, item)
        self._objects[kind][place] = slim
        if kind == kinds.LLM_DEPLOYMENT.name:
            is_changing = objects.text(slim, "status", "tuning", "state") in _CHANGING
            (self._changing.add if is_changing else self._changing.discard)(place)
        if (key := family_key(kind, slim)) is not None:
            self._families[kind].setdefault(key, {})[place[1]] = slim
        return known is None or _reads_otherwise(kind, known, slim)

    def see_gone(self, kind: str, item: Object) -> bool:
        """Take the news that an object is gone; returns whether it was news.

        Args:
            kind: of the object.
            item: its last state; its resourceVersion is that of the deletion where a watch says it.
        """
        place, version = _place(item), _version(item)
        known = self._objects[kind].get(place)
        if known is not None and _version(known) > version:
            return False
        self._gone[kind][place] = (objects.uid(item), version)
        return self._drop(kind, place)

    def merge(self, kind: str, listing: Listing, namespace: str = "") -> set[Key]:
        """Take a whole list of a kind (of one namespace, or of all).

        What the list lacks is dropped unless its cached version is newer than the list.

        Returns:
            Keys of the LLMDeployments that this was news for.
        """
        touched: set[Key] = set()
        seen = set()
        for item in listing.items:
            seen.add(_place(item))
            if self.see(kind, item) and (key := owner_key(kind, item)) is not None:
                touched.add(key)
        for place, known in tuple(self._objects[kind].items()):
            is_here = not namespace or place[0] == namespace
            if is_here and place not in seen and _version(known) <= listing.resource_version:
                if (key := owner_key(kind, known)) is not None:
                    touched.add(key)
                self._drop(kind, place)
        # A list that is newer than a deletion has said all there is to say about it.
        self._gone[kind] = {
            place: gone
            for place, gone in self._gone[kind].items()
            if gone[1] > listing.resource_version
        }
        return touched

    def forget(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """An object is gone because the operator deleted it: no older news brings it back."""
        known = self._objects[kind].get((namespace, name))
        if known is not None and objects.uid(known) == uid:
            self._gone[kind][namespace, name] = (uid, _version(known))
            self._drop(kind, (namespace, name))

    def _drop(self, kind: str, place: Key) -> bool:
        known = self._objects[kind].pop(place, None)
        if known is None:
            return False
        if kind == kinds.LLM_DEPLOYMENT.name:
            self._changing.discard(place)
        self._leave_family(kind, known)
        return True

    def _leave_family(self, kind: str, known: Object) -> None:
        key = family_key(kind, known)
        if key is None:
            return
        members = self._families[kind].get(key, {})
        members.pop(objects.name(known), None)
        if not members:
            self._families[kind].pop(key, None)

    def _slim(self, kind: str, item: Object) -> Object:
        """Without what no decision looks at: it is most of the memory."""
        metadata = dict(objects.mapping(item, "metadata"))
        fields = [
            entry
            for entry in objects.items(metadata, "managedFields")
            if entry.get("manager") == self._manager and kind in CHILD_KINDS
        ]
        metadata.pop("managedFields", None)
        if fields:
            metadata["managedFields"] = fields
        annotations = objects.mapping(metadata, "annotations")
        if not _UNREAD_ANNOTATIONS.isdisjoint(annotations):
            metadata["annotations"] = {
                key: value for key, value in annotations.items() if key not in _UNREAD_ANNOTATIONS
            }
        slim = {**item, "metadata": metadata}
        if kind == kinds.POD.name:
            slim["spec"] = _pod_spec(item)
        elif kind in CHILD_KINDS:
            slim["status"] = _child_status(item)
        return slim


def _reads_otherwise(kind: str, before: Object, after: Object) -> bool:
    """Whether two versions of an object differ in anything that a plan looks at."""
    unread = {"resourceVersion", "generation"} if kind in CHILD_KINDS else {"resourceVersion"}
    return _differ(before, after, {"metadata"}) or _differ(
        before["metadata"], after["metadata"], unread
    )


def _differ(one: Object, other: Object, unread: set[str]) -> bool:
    """Whether a field differs; an empty one is as good as none."""
    read = (one.keys() | other.keys()) - unread
    return any((one.get(key) or None) != (other.get(key) or None) for key in read)


def family_key(kind: str, item: Object) -> Key | None:
    """The LLMDeployment that a child's or pod's label names."""
    if kind not in CHILD_KINDS and kind != kinds.POD.name:
        return None
    name = objects.labels(item).get(names.DEPLOYMENT_LABEL, "")
    return (objects.text(item, "metadata", "namespace"), name) if name else None


def owner_key(kind: str, item: Object) -> Key | None:
    """The LLMDeployment that has to be looked at when an object changes."""
    return _place(item) if kind == kinds.LLM_DEPLOYMENT.name else family_key(kind, item)


def _child_status(item: Object) -> dict[str, Any]:
    """Why the cluster refuses to make a Deployment's pods; they are counted one by one."""
    refusal = objects.condition(item, "ReplicaFailure")
    return {"conditions": [refusal]} if refusal else {}


def _pod_spec(item: Object) -> dict[str, Any]:
    kept = [
        {
            name: container[name]
            for name in ("name", "command", "args", "env", "ports")
            if name in container
        }
        for container in objects.items(item, "spec", "containers")
    ]
    node = objects.text(item, "spec", "nodeName")
    return {"containers": kept} | ({"nodeName": node} if node else {})


def _place(item: Object) -> Key:
    return objects.text(item, "metadata", "namespace"), objects.name(item)


def _version(item: Object) -> int:
    """Versions of one kind are comparable numbers (Kubernetes says so since 1.35)."""
    text = objects.text(item, "metadata", "resourceVersion")
    return int(text) if text.isdecimal() else 0

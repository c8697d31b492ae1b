"""Objects in memory with the API server's rules that plans rely on: versions, server-side apply.

Kept small: one namespace, no schemas. Defaults are filled in for the fields that the real server
fills in, and quantities are rewritten as it rewrites them, so that comparisons are put to the test.
"""

import copy
import json
from collections.abc import Mapping
from typing import Any

from paceline_operator.resources import objects

_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
_SERVICE_PORT = ("port", "protocol")
Object = dict[str, Any]


class Refused(Exception):
    """The server said no: 404, 409 or 422."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Store:
    """Objects by kind and name. Mutable; owned by a World."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.num_writes = 0
        self._version = 0
        self._uid = 0

    def stamp(self) -> tuple[str, str]:
        """A fresh uid and resourceVersion."""
        self._uid += 1
        self._version += 1
        return f"uid-{self._uid}", str(self._version)

    def of_kind(self, kind: str) -> list[Object]:
        """Objects of one kind, by name."""
        return [item for (of, _), item in sorted(self.objects.items()) if of == kind]

    def touch(self, item: Object) -> None:
        """A change of an object by anybody: it has a new resourceVersion."""
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)

    def apply(
        self,
        manifest: Mapping[str, Any],
        manager: str,
        now: float,
        *,
        uid: str | None,
        resource_version: str | None,
    ) -> Object:
        """Server-side apply; a create when no uid is given.

        Raises:
            Refused: 409 when the object is another one or has changed, 422 for a second controller.
        """
        desired = copy.deepcopy(dict(manifest))
        key = desired["kind"], desired["metadata"]["name"]
        live = self.objects.get(key)
        if uid is None and live is not None:
            raise Refused(409, f"{key} exists")
        if uid is not None:
            if live is None or live["metadata"]["uid"] != uid:
                raise Refused(409, f"{key} is another object")
            if live["metadata"]["resourceVersion"] != resource_version:
                raise Refused(409, f"{key} has changed")
        self.num_writes += 1
        fields = _fields(desired)
        if live is None:
            new_uid, version = self.stamp()
            live = {"apiVersion": desired["apiVersion"], "kind": desired["kind"], "metadata": {}}
            live["metadata"] |= {
                "uid": new_uid,
                "creationTimestamp": objects.timestamp(now),
                "resourceVersion": version,
            }
            self.objects[key] = live
        else:
            before = live["metadata"]["managedFields"][0]["fieldsV1"]
            _remove(live, before, fields)
            self.touch(live)
        _merge(live, desired)
        _default(live)
        live["metadata"]["managedFields"] = [
            {"manager": manager, "operation": "Apply", "fieldsV1": fields}
        ]
        return live

    def delete(self, kind: str, name: str, uid: str) -> None:
        """Delete with the uid as precondition; what has gone already is no failure."""
        live = self.objects.get((kind, name))
        if live is None:
            return
        if live["metadata"]["uid"] != uid:
            raise Refused(409, f"{kind}/{name} is another object")
        self.num_writes += 1
        del self.objects[kind, name]

    def collect_garbage(self) -> None:
        """Remove what a vanished controller owned."""
        while True:
            alive = {item["metadata"]["uid"] for item in self.objects.values()}
            gone = [
                key
                for key, item in self.objects.items()
                if key[0] != "Pod"  # these end gracefully, by the kubelet
                and (owner := objects.controller_uid(item))
                and owner not in alive
            ]
            if not gone:
                return
            for key in gone:
                del self.objects[key]


def _fields(value: Any, key: str = "") -> dict[str, Any]:
    """`fieldsV1` of a manifest."""
    if isinstance(value, Mapping):
        skip = {"apiVersion", "kind"} if not key else set()
        skip |= {"name", "namespace"} if key == "metadata" else set()
        return {
            f"f:{name}": _fields(item, name) for name, item in value.items() if name not in skip
        }
    keys = _list_keys(key, value)
    if isinstance(value, list) and keys:
        return {
            "k:" + json.dumps({name: item[name] for name in keys if name in item}): {
                ".": {},
                **_fields(item, "item"),
            }
            for item in value
        }
    return {}


def _list_keys(key: str, value: Any) -> tuple[str, ...]:
    if key == "ports" and isinstance(value, list) and value and "port" in value[0]:
        return _SERVICE_PORT if "targetPort" in value[0] else ()
    return _KEYS.get(key, ())


def _remove(live: Any, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Take out what our manager owned and does not want any more."""
    for path, below in before.items():
        kind, _, rest = path.partition(":")
        if kind == "f" and isinstance(live, dict):
            if path not in now:
                live.pop(rest, None)
            elif below:
                _remove(live.get(rest), below, now[path])
        elif kind == "k" and isinstance(live, list):
            wanted = json.loads(rest)
            found = [item for item in live if all(item.get(k) == v for k, v in wanted.items())]
            if path not in now:
                for item in found:
                    live.remove(item)
            elif found:
                _remove(found[0], below, now[path])


def _merge(live: Object, desired: Mapping[str, Any]) -> None:
    for name, value in desired.items():
        keys = _list_keys(name, value)
        if isinstance(value, Mapping) and isinstance(live.get(name), dict):
            _merge(live[name], value)
        elif isinstance(value, list) and keys and isinstance(live.get(name), list):
            for item in value:
                same = [
                    other
                    for other in live[name]
                    if all(other.get(key) == item.get(key) for key in keys)
                ]
                if same:
                    _merge(same[0], item)
                else:
                    live[name].append(copy.deepcopy(item))
        else:
            live[name] = copy.deepcopy(value)


def _default(live: Object) -> None:
    """What the real server fills in and rewrites."""
    if live["kind"] == "Deployment":
        live["spec"].setdefault("progressDeadlineSeconds", 600)
        pod = live["spec"]["template"]["spec"]
        pod.setdefault("restartPolicy", "Always")
        pod.setdefault("dnsPolicy", "ClusterFirst")
        for container in pod["containers"]:
            container.setdefault("terminationMessagePath", "/dev/termination-log")
            container.setdefault("imagePullPolicy", "IfNotPresent")
            for amounts in container.get("resources", {}).values():
                for name, amount in amounts.items():
                    amounts[name] = "1" if amount == "1000m" else amount
    if live["kind"] == "Service":
        live["spec"].setdefault("clusterIP", "10.0.0.7")
        live["spec"].setdefault("sessionAffinity", "None")

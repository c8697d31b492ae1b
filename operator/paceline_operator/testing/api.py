"""A small API server in memory, for faults that the real one does not have on demand.

It keeps the rules that the operator relies on (`testing/contract.py` says which, and the same rules
are checked at a real server): versions, server-side apply, preconditions, the status subresource,
label selectors. A fault can refuse a request, lose it, or do it and lose the answer.
"""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from paceline_crds import crd
from paceline_operator.resources import objects
from paceline_operator.shell import kinds
from paceline_operator.shell.errors import ApiRefused, ApiUnreachable
from paceline_operator.testing.store import Object, Refused, Store

NAMESPACE = "models"
_SERVED = (*kinds.WATCHED, kinds.EVENT, kinds.LEASE)
_REASONS = {404: "NotFound", 409: "Conflict", 422: "Invalid", 410: "Expired", 403: "Forbidden"}


class Fault(StrEnum):
    """What happens to a request."""

    LOSE = "Lose"
    LOSE_ANSWER = "LoseAnswer"
    CONFLICT = "Conflict"
    FORBID = "Forbid"
    EXPIRE = "Expire"


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    method: str
    path: str
    params: Mapping[str, str]
    body: Any
    content_type: str

    @property
    def is_write(self) -> bool:
        """Whether it changes anything."""
        return self.method != "GET"


Faults = Callable[[Request], Fault | None]


class FakeApi:
    """Answers requests from a Store. Mutable.

    Attributes:
        faults: asked about each request; None lets it pass.
        log: method and path of every request, with what came of it.
        absent: kinds that this server does not know.
    """

    def __init__(
        self, store: Store, clock: Callable[[], float], *, absent: frozenset[str] = frozenset()
    ) -> None:
        self.store = store
        self.absent = absent
        self.faults: Faults = lambda _: None
        self.log: list[tuple[str, str, int]] = []
        self._clock = clock

    async def close(self) -> None:
        """As a session; there is nothing to close."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """As `shell.session.Session.request`.

        Raises:
            ApiRefused: the rules of the server, or a fault.
            ApiUnreachable: a fault.
        """
        asked = Request(method, path, dict(params or {}), copy.deepcopy(body), content_type)
        fault = self.faults(asked)
        match fault:
            case Fault.LOSE:
                raise ApiUnreachable(f"{method} {path}: lost")
            case Fault.CONFLICT:
                raise ApiRefused(409, "Conflict", "the object has been modified")
            case Fault.FORBID:
                raise ApiRefused(403, "Forbidden", "you may not")
            case Fault.EXPIRE:
                raise ApiRefused(410, "Expired", "too old resource version")
        try:
            answer = self._answer(asked)
        except Refused as refused:
            self.log.append((method, path, refused.code))
            reason = _REASONS.get(refused.code, "")
            raise ApiRefused(refused.code, reason, str(refused)) from refused
        self.log.append((method, path, 200))
        if fault is Fault.LOSE_ANSWER:
            raise ApiUnreachable(f"{method} {path}: the answer was lost")
        return copy.deepcopy(answer)

    def _answer(self, asked: Request) -> dict[str, Any]:
        parts = asked.path.strip("/").split("/")
        if parts[0] == "openapi":
            return _published()
        group, parts = (parts[1], parts[2:]) if parts[0] == "apis" else ("", parts[1:])
        version, parts = parts[0], parts[1:]
        if not parts:
            return self._resources(group, version)
        namespace = ""
        if parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        kind = next(
            (
                item
                for item in _SERVED
                if (item.group, item.version, item.plural) == (group, version, parts[0])
                and item.name not in self.absent
            ),
            None,
        )
        if kind is None:
            raise Refused(404, "the server could not find the requested resource")
        name, subresource = (*parts[1:], "", "")[:2]
        if asked.method == "GET":
            return self._one(kind, name) if name else self._list(kind, namespace, asked.params)
        return self._write(kind, namespace, name, subresource, asked)

    def _resources(self, group: str, version: str) -> dict[str, Any]:
        found = [
            {"name": item.plural, "kind": item.name}
            for item in _SERVED
            if (item.group, item.version) == (group, version) and item.name not in self.absent
        ]
        if not found:
            raise Refused(404, "the server could not find the requested resource")
        return {"kind": "APIResourceList", "resources": found}

    def _one(self, kind: kinds.Kind, name: str) -> Object:
        found = self.store.objects.get((kind.name, name))
        if found is None:
            raise Refused(404, f'{kind.plural} "{name}" not found')
        return found

    def _list(self, kind: kinds.Kind, namespace: str, params: Mapping[str, str]) -> dict[str, Any]:
        label, _, value = params.get("labelSelector", "").partition("=")
        found = [
            {key: part for key, part in item.items() if key not in {"apiVersion", "kind"}}
            for item in self.store.of_kind(kind.name)
            if namespace in {"", item["metadata"].get("namespace")}
            and (not label or label in objects.labels(item))
            and (not value or objects.labels(item).get(label) == value)
        ]
        version = str(self.store.version)
        return {"metadata": {"resourceVersion": version}, "items": found}

    def _write(
        self, kind: kinds.Kind, namespace: str, name: str, subresource: str, asked: Request
    ) -> dict[str, Any]:
        match asked.method:
            case "POST":
                return self._create(kind, namespace, asked.body)
            case "PUT":
                return self._put(kind, name, subresource, asked.body)
            case "DELETE":
                return self._delete(kind, name, asked.body)
        if asked.content_type == "application/apply-patch+yaml":
            metadata = asked.body["metadata"]
            uid, version = metadata.pop("uid", None), metadata.pop("resourceVersion", None)
            if uid is None and version is None:
                raise AssertionError("an apply without any precondition was sent")
            if uid is not None and kind.name == "Service":
                _refuse_second_port(self._one(kind, name), asked.body)
            return self.store.apply(
                asked.body,
                asked.params["fieldManager"],
                self._clock(),
                uid=uid,
                resource_version=version,
            )
        live = self._one(kind, name)
        self._check(live, asked.body["metadata"])
        kept = live["metadata"].setdefault("annotations", {})
        for key, value in asked.body["metadata"].get("annotations", {}).items():
            if value is None:
                kept.pop(key, None)
            else:
                kept[key] = value
        live.get("spec", {}).update(asked.body.get("spec", {}))
        self.store.num_writes += 1
        self.store.touch(live)
        return live

    def _create(self, kind: kinds.Kind, namespace: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        if (kind.name, name) in self.store.objects:
            raise Refused(409, f'{kind.plural} "{name}" already exists')
        uid, version = self.store.stamp()
        body["metadata"] |= {
            "namespace": namespace,
            "uid": uid,
            "resourceVersion": version,
            "generation": 1,
            "creationTimestamp": objects.timestamp(self._clock()),
        }
        if kind is not kinds.EVENT:
            self.store.objects[kind.name, name] = body
        return body

    def _put(self, kind: kinds.Kind, name: str, subresource: str, body: Object) -> Object:
        live = self._one(kind, name)
        self._check(live, body["metadata"])
        part = subresource or "spec"
        live[part] = body[part]
        self.store.num_writes += 1
        self.store.touch(live)
        return live

    def _delete(self, kind: kinds.Kind, name: str, options: Object) -> dict[str, Any]:
        live = self._one(kind, name)
        self._check(live, options["preconditions"])
        if kind is kinds.POD:
            live["metadata"]["deletionTimestamp"] = objects.timestamp(self._clock())
            self.store.num_writes += 1
            self.store.touch(live)
            return live
        self.store.delete(kind.name, name, objects.uid(live))
        self.store.collect_garbage()
        return {"kind": "Status", "status": "Success", "details": {"uid": objects.uid(live)}}

    def _check(self, live: Object, wanted: Mapping[str, Any]) -> None:
        for field in ("uid", "resourceVersion"):
            if field in wanted and wanted[field] != live["metadata"][field]:
                raise Refused(409, f"the {field} in the precondition is not the object's")


def _refuse_second_port(live: Object, desired: Object) -> None:
    """Ports are merged by their number: another one of the same name stays, unless it was ours."""
    before = objects.mapping(live["metadata"]["managedFields"][0], "fieldsV1", "f:spec", "f:ports")
    wanted = {item["name"]: item["port"] for item in desired["spec"]["ports"]}
    for item in live["spec"]["ports"]:
        key = "k:" + json.dumps({"port": item["port"], "protocol": item["protocol"]})
        if wanted.get(item["name"], item["port"]) != item["port"] and key not in before:
            raise Refused(422, f'spec.ports[1].name: Duplicate value: "{item["name"]}"')


def _published() -> dict[str, Any]:
    """The schema of LLMDeployments as the server publishes it: whole, and with whose it is."""
    kind = kinds.LLM_DEPLOYMENT
    (version,) = crd.definition()["spec"]["versions"]
    whose = {"group": kind.group, "kind": kind.name, "version": kind.version}
    schema = version["schema"]["openAPIV3Schema"] | {"x-kubernetes-group-version-kind": [whose]}
    return {"components": {"schemas": {f"{kind.group}.{kind.name}": schema}}}

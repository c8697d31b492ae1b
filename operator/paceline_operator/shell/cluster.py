"""What the operator does at the API server: each write carries what it was planned from.

A write that was planned from an object that has changed meanwhile is refused by the server with
409, whoever sent it and however late: a paused old leader cannot undo anything.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline_crds import crd
from paceline_operator.decide.observed import PodEvent
from paceline_operator.render import names
from paceline_operator.resources import objects
from paceline_operator.shell import kinds
from paceline_operator.shell.errors import CONFLICT, INVALID, ApiRefused
from paceline_operator.shell.kinds import Kind

Object = dict[str, Any]
ABSENT = "1"
"""A resourceVersion that no object has: an apply that carries it creates, or is refused with 409.

The server compares it with the live object's and ignores it where there is none; so a create can
never become a change of what somebody made in between.
"""
_PAGE = "500"
_COMPONENT = "paceline-operator"


class Requests(Protocol):
    """Requests to an API server: a `session.Session`, or one in memory."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """One request and its JSON answer."""

    async def close(self) -> None:
        """End its connections."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A whole list and the version of the collection that it shows."""

    items: list[Object]
    resource_version: int


@dataclass(slots=True)
class Cluster:
    """The API server as reconciles use it.

    Attributes:
        field_manager: name under which fields are applied.
        num_writes: kind of write -> how many were sent; for metrics and tests.
    """

    session: Requests
    field_manager: str = "paceline-operator"
    num_writes: dict[str, int] = field(default_factory=dict)

    async def list_all(self, kind: Kind, namespace: str = "", selector: str = "") -> Listing:
        """Every object of a kind, page by page, in one namespace or in all."""
        params = {"limit": _PAGE} | ({"labelSelector": selector} if selector else {})
        found: list[Object] = []
        while True:
            page = await self.session.request("GET", kind.path(namespace), params=params)
            # Items of a list say neither; objects of a watch say both.
            whole = {"apiVersion": kind.api_version, "kind": kind.name}
            found += [{**whole, **item} for item in objects.items(page, "items")]
            token = objects.text(page, "metadata", "continue")
            if not token:
                version = objects.text(page, "metadata", "resourceVersion")
                return Listing(found, int(version or 0))
            params["continue"] = token

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, None if there is none."""
        try:
            return await self.session.request("GET", kind.path(namespace, name))
        except ApiRefused as refused:
            if refused.code == 404:
                return None
            raise

    async def knows(self, kind: Kind) -> bool:
        """Whether this cluster serves a kind."""
        group = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
        try:
            found = await self.session.request("GET", group)
        except ApiRefused as refused:
            if refused.code in {403, 404}:
                return False
            raise
        return any(item.get("name") == kind.plural for item in objects.items(found, "resources"))

    async def schema_version(self) -> int | None:
        """Version of the schema of LLMDeployments here, None if the server does not tell.

        From the published schema: a namespaced install has no right on definitions.
        """
        kind = kinds.LLM_DEPLOYMENT
        try:
            found = await self.session.request("GET", f"/openapi/v3/apis/{kind.api_version}")
        except ApiRefused as refused:
            if refused.code in {403, 404}:
                return None
            raise
        for schema in objects.mapping(found, "components", "schemas").values():
            group_kinds = objects.items(schema, "x-kubernetes-group-version-kind")
            if any(item.get("kind") == kind.name for item in group_kinds):
                return crd.told_version(objects.text(schema, "description"))
        return None

    async def apply(
        self, manifest: Mapping[str, Any], uid: str | None, resource_version: str | None
    ) -> Object:
        """Server-side apply: of an object as it was seen; without uid, of one that is absent.

        Raises:
            ApiRefused: 409 if the object is another one by now, or is there although it should not.
        """
        try:
            return await self._apply(manifest, uid, resource_version)
        except ApiRefused as refused:
            if refused.code == CONFLICT and uid is None:
                raise ApiRefused(CONFLICT, "AlreadyExists", _taken(manifest)) from refused
            is_mended = manifest["kind"] == "Service" and uid is not None
            if refused.code != INVALID or not is_mended:
                raise
        freed = await self._replace_ports(manifest, uid, resource_version)
        return await self._apply(manifest, uid, objects.text(freed, "metadata", "resourceVersion"))

    async def _replace_ports(
        self, manifest: Mapping[str, Any], uid: str | None, resource_version: str | None
    ) -> Object:
        """Take ports out of a Service that are somebody else's.

        Ports are merged by their number: one that a person renumbered is theirs, an apply would set
        ours beside it, and two of one name are refused. A merge patch replaces the list.
        """
        metadata = manifest["metadata"]
        return await self._write(
            "apply",
            "PATCH",
            kinds.CHILDREN["Service"].path(metadata["namespace"], metadata["name"]),
            body={
                "metadata": {"uid": uid, "resourceVersion": resource_version},
                "spec": {"ports": manifest["spec"]["ports"]},
            },
            content_type="application/merge-patch+json",
        )

    async def _apply(
        self, manifest: Mapping[str, Any], uid: str | None, resource_version: str | None
    ) -> Object:
        kind = kinds.CHILDREN[manifest["kind"]]
        metadata = dict(manifest["metadata"])
        if uid is None:
            metadata["resourceVersion"] = ABSENT
        else:
            metadata |= {"uid": uid, "resourceVersion": resource_version}
        return await self._write(
            "apply",
            "PATCH",
            kind.path(metadata["namespace"], metadata["name"]),
            params={"force": "true"} if uid is not None else {},
            body={**manifest, "metadata": metadata},
            content_type="application/apply-patch+yaml",
        )

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, resource_version: str | None = None
    ) -> Object | None:
        """Delete an object as it was seen; None if it has gone already.

        Raises:
            ApiRefused: 409 if it is another one by now.
        """
        preconditions = {"uid": uid} | (
            {"resourceVersion": resource_version} if resource_version else {}
        )
        body = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": preconditions,
            "propagationPolicy": "Background",
        }
        self._count("delete")
        try:
            return await self.session.request("DELETE", kind.path(namespace, name), body=body)
        except ApiRefused as refused:
            if refused.code == 404:
                return None
            raise

    async def write_status(
        self,
        seen: Mapping[str, Any],
        status: Mapping[str, Any],
        uid: str,
        resource_version: str,
    ) -> Object:
        """Replace the status of an LLMDeployment as it was seen.

        Raises:
            ApiRefused: 409 if it has changed meanwhile.
        """
        namespace, name = objects.text(seen, "metadata", "namespace"), objects.name(seen)
        body = {
            "apiVersion": kinds.LLM_DEPLOYMENT.api_version,
            "kind": kinds.LLM_DEPLOYMENT.name,
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid,
                "resourceVersion": resource_version,
            },
            # A whole object is what PUT asks for; the server takes nothing but status from it.
            "spec": seen.get("spec"),
            "status": status,
        }
        path = kinds.LLM_DEPLOYMENT.path(namespace, name, "status")
        return await self._write("status", "PUT", path, body=body)

    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: Mapping[str, str | None]
    ) -> Object:
        """Set annotations of a pod, None takes one away.

        Raises:
            ApiRefused: 409 if it is another pod by now.
        """
        return await self._write(
            "annotate",
            "PATCH",
            kinds.POD.path(namespace, name),
            body={"metadata": {"uid": uid, "annotations": dict(annotations)}},
            content_type="application/merge-patch+json",
        )

    async def create_event(
        self, about: Mapping[str, Any], kind: str, reason: str, message: str, now: float
    ) -> None:
        """Write an event about an LLMDeployment."""
        namespace, name = objects.text(about, "metadata", "namespace"), objects.name(about)
        stamp = objects.timestamp(now)
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.{secrets.token_hex(8)}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": kinds.LLM_DEPLOYMENT.api_version,
                "kind": kinds.LLM_DEPLOYMENT.name,
                "name": name,
                "namespace": namespace,
                "uid": objects.uid(about),
                "resourceVersion": objects.text(about, "metadata", "resourceVersion"),
            },
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": _COMPONENT},
            "reportingComponent": _COMPONENT,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        self._count("event")
        await self.session.request("POST", kinds.EVENT.path(namespace), body=body)

    async def pod_warnings(self, namespace: str, pod_uid: str) -> list[PodEvent]:
        """Warnings that the cluster wrote about a pod."""
        selector = f"involvedObject.uid={pod_uid},type=Warning"
        found = await self.session.request(
            "GET", kinds.EVENT.path(namespace), params={"fieldSelector": selector, "limit": "50"}
        )
        return [
            PodEvent(
                pod_uid=pod_uid,
                reason=objects.text(item, "reason"),
                message=objects.text(item, "message"),
                last_seen=objects.seconds(item.get("lastTimestamp"))
                or objects.seconds(item.get("eventTime"))
                or objects.created_at(item),
            )
            for item in objects.items(found, "items")
        ]

    async def write_lease(self, lease: Object) -> Object:
        """Create a Lease, or replace it as it was seen (if it has a resourceVersion).

        Raises:
            ApiRefused: 409 if somebody else was first.
        """
        metadata = lease["metadata"]
        is_new = "resourceVersion" not in metadata
        path = kinds.LEASE.path(metadata["namespace"], "" if is_new else metadata["name"])
        self._count("lease")
        return await self.session.request("POST" if is_new else "PUT", path, body=lease)

    async def _write(
        self,
        what: str,
        method: str,
        path: str,
        *,
        body: Any,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """A write in our field manager's name, of an object as it was seen."""
        self._count(what)
        try:
            return await self.session.request(
                method,
                path,
                params={"fieldManager": self.field_manager, **(params or {})},
                body=body,
                content_type=content_type,
            )
        except ApiRefused as refused:
            # In a patch another uid is an immutable field that would change: that is a conflict.
            if refused.code == INVALID and "metadata.uid" in refused.message:
                raise ApiRefused(CONFLICT, "Conflict", refused.message) from refused
            raise

    def _count(self, what: str) -> None:
        self.num_writes[what] = self.num_writes.get(what, 0) + 1


def _taken(manifest: Mapping[str, Any]) -> str:
    """Why a create was refused. Told only if it is refused again: by then what is ours was seen."""
    owner = objects.labels(manifest).get(names.DEPLOYMENT_LABEL, "")
    return (
        f"{manifest['kind']} {objects.name(manifest)} is there already and is not this "
        f"LLMDeployment's, since it has no label {names.DEPLOYMENT_LABEL}={owner}; rename or "
        "delete it, or give the LLMDeployment another name"
    )

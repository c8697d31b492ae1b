"""What the operator relies on at an API server, as rules that are checked at the fake and the real.

`python -m paceline_operator.testing.contract NAMESPACE` checks them at the server of the
kubeconfig and writes one line a rule.
"""

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from typing import Any

from paceline_crds import crd
from paceline_operator.resources import objects
from paceline_operator.shell import kinds
from paceline_operator.shell.cluster import Cluster, Object
from paceline_operator.shell.errors import ApiRefused
from paceline_operator.shell.session import Session

NOW = 1_800_000_000.0
Rule = Callable[[Cluster, str], Awaitable[None]]
_CONFIG_MAP = kinds.CHILDREN["ConfigMap"]
_OTHER_UID = "00000000-0000-4000-8000-000000000000"


async def an_apply_without_uid_creates_once_and_never_changes(
    cluster: Cluster, namespace: str
) -> None:
    """Even our own field manager is refused: a paused leader cannot undo a change by creating."""
    made = await cluster.apply(_map(namespace, "created", a="1"), None, None)
    with _refused(409):
        await cluster.apply(_map(namespace, "created", a="2"), None, None)
    live = await cluster.get(_CONFIG_MAP, namespace, "created")
    assert live is not None
    assert live["data"] == {"a": "1"}
    assert _version(live) == _version(made)


async def an_apply_is_refused_for_another_object_or_version(
    cluster: Cluster, namespace: str
) -> None:
    """Preconditions hold in server-side apply."""
    made = await cluster.apply(_map(namespace, "guarded", a="1"), None, None)
    changed = await cluster.apply(
        _map(namespace, "guarded", a="2"), objects.uid(made), _version(made)
    )
    assert int(_version(changed)) > int(_version(made))
    with _refused(409):
        await cluster.apply(_map(namespace, "guarded", a="3"), objects.uid(made), _version(made))
    with _refused(409):
        await cluster.apply(_map(namespace, "guarded", a="3"), _OTHER_UID, _version(changed))
    live = await cluster.get(_CONFIG_MAP, namespace, "guarded")
    assert live is not None
    assert live["data"] == {"a": "2"}


async def a_key_that_is_no_longer_applied_goes(cluster: Cluster, namespace: str) -> None:
    """What our manager owned and does not want any more is removed."""
    made = await cluster.apply(_map(namespace, "shrinks", a="1", b="2"), None, None)
    less = await cluster.apply(_map(namespace, "shrinks", a="1"), objects.uid(made), _version(made))
    assert less["data"] == {"a": "1"}
    managers = [item["manager"] for item in less["metadata"]["managedFields"]]
    assert managers == [cluster.field_manager]


async def a_deletion_is_refused_for_another_object_or_version(
    cluster: Cluster, namespace: str
) -> None:
    """And one that finds nothing is no failure."""
    made = await cluster.apply(_map(namespace, "goes", a="1"), None, None)
    with _refused(409):
        await cluster.delete(_CONFIG_MAP, namespace, "goes", _OTHER_UID)
    with _refused(409):
        await cluster.delete(_CONFIG_MAP, namespace, "goes", objects.uid(made), "2")
    assert await cluster.delete(_CONFIG_MAP, namespace, "goes", objects.uid(made)) is not None
    assert await cluster.get(_CONFIG_MAP, namespace, "goes") is None
    assert await cluster.delete(_CONFIG_MAP, namespace, "goes", objects.uid(made)) is None


async def a_status_is_written_over_the_version_it_was_made_for(
    cluster: Cluster, namespace: str
) -> None:
    """It leaves spec and generation alone."""
    seen = await _create(cluster, kinds.LLM_DEPLOYMENT, namespace, "told", _SPEC)
    status = {"observedGeneration": 1, "conditions": []}
    wrong_spec = {**seen, "spec": {"model": {"uri": "hf://somebody/else"}}}
    told = await cluster.write_status(wrong_spec, status, objects.uid(seen), _version(seen))
    assert told["status"]["observedGeneration"] == 1
    assert told["spec"]["model"] == {"uri": "demo"}
    assert told["metadata"]["generation"] == 1
    assert int(_version(told)) > int(_version(seen))
    with _refused(409):
        await cluster.write_status(seen, status, objects.uid(seen), _version(seen))
    await cluster.delete(kinds.LLM_DEPLOYMENT, namespace, "told", objects.uid(seen))


async def a_list_has_kinds_and_a_version_not_below_its_items(
    cluster: Cluster, namespace: str
) -> None:
    """And a selector for a label's presence, or its value."""
    labelled = _map(namespace, "listed", a="1")
    labelled["metadata"]["labels"] = {"example.com/a": "b"}
    made = await cluster.apply(labelled, None, None)
    for selector, is_found in (("example.com/a", True), ("example.com/a=c", False), ("", True)):
        listing = await cluster.list_all(_CONFIG_MAP, namespace, selector)
        found = [item for item in listing.items if objects.name(item) == "listed"]
        assert bool(found) is is_found, selector
        assert listing.resource_version >= int(_version(made))
        assert all(item["kind"] == "ConfigMap" for item in found)


async def a_pod_is_annotated_only_if_it_is_the_same(cluster: Cluster, namespace: str) -> None:
    """A merge patch with a uid; None takes an annotation away."""
    made = await _create(cluster, kinds.POD, namespace, "marked", _POD_SPEC)
    with _refused(409):
        await cluster.annotate_pod(namespace, "marked", _OTHER_UID, {"example.com/a": "b"})
    uid = objects.uid(made)
    marked = await cluster.annotate_pod(namespace, "marked", uid, {"example.com/a": "b"})
    assert objects.annotation(marked, "example.com/a") == "b"
    bare = await cluster.annotate_pod(namespace, "marked", uid, {"example.com/a": None})
    assert objects.annotation(bare, "example.com/a") == ""
    with _refused(409):
        await cluster.delete(kinds.POD, namespace, "marked", _OTHER_UID)
    await cluster.delete(kinds.POD, namespace, "marked", uid)


async def a_lease_is_taken_by_one(cluster: Cluster, namespace: str) -> None:
    """Of two that create or renew it at the same time one is refused."""
    metadata = {"name": "lock", "namespace": namespace}
    body = {"holderIdentity": "one", "leaseDurationSeconds": 5}
    lease = {"apiVersion": kinds.LEASE.api_version, "kind": "Lease", "metadata": metadata}
    made = await cluster.write_lease({**lease, "spec": body})
    with _refused(409):
        await cluster.write_lease({**lease, "spec": body | {"holderIdentity": "two"}})
    await cluster.write_lease({**made, "spec": body | {"holderIdentity": "three"}})
    with _refused(409):
        await cluster.write_lease({**made, "spec": body | {"holderIdentity": "two"}})


async def what_is_not_there_is_none_and_kinds_are_known(cluster: Cluster, namespace: str) -> None:
    """Absence is an answer."""
    assert await cluster.get(_CONFIG_MAP, namespace, "absent") is None
    assert await cluster.knows(kinds.LLM_DEPLOYMENT)
    assert not await cluster.knows(kinds.Kind("Nothing", "nowhere.example", "v1", "nothings"))


async def an_event_is_written(cluster: Cluster, namespace: str) -> None:
    """About an object, even one that has just gone."""
    about = {"metadata": {"name": "told", "namespace": namespace, "uid": _OTHER_UID}}
    await cluster.create_event(about, "Normal", "Tested", "the rules were checked", NOW)


async def a_port_that_somebody_renumbered_is_put_right(cluster: Cluster, namespace: str) -> None:
    """An apply alone would be refused: it would set a second port of that name beside it."""
    kind = kinds.CHILDREN["Service"]

    def service(port: int) -> Object:
        ports = [{"name": "http", "port": port, "protocol": "TCP", "targetPort": "http"}]
        metadata = {"name": "renumbered", "namespace": namespace}
        spec = {"selector": {"a": "b"}, "ports": ports}
        return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}

    made = await cluster.apply(service(8000), None, None)
    by_hand = await cluster.session.request(
        "PATCH",
        kind.path(namespace, "renumbered"),
        body={
            "metadata": {"uid": objects.uid(made)},
            "spec": {"ports": service(9999)["spec"]["ports"]},
        },
        content_type="application/merge-patch+json",
    )
    await cluster.apply(service(8000), objects.uid(made), _version(by_hand))
    live = await cluster.get(kind, namespace, "renumbered")
    assert [port["port"] for port in objects.items(live, "spec", "ports")] == [8000]


async def the_published_schema_tells_its_version(cluster: Cluster, namespace: str) -> None:
    """Everybody who is logged in may read it, also where definitions are out of reach."""
    del namespace
    assert await cluster.schema_version() == crd.SCHEMA_VERSION


RULES: tuple[Rule, ...] = (
    an_apply_without_uid_creates_once_and_never_changes,
    an_apply_is_refused_for_another_object_or_version,
    a_key_that_is_no_longer_applied_goes,
    a_deletion_is_refused_for_another_object_or_version,
    a_status_is_written_over_the_version_it_was_made_for,
    a_list_has_kinds_and_a_version_not_below_its_items,
    a_pod_is_annotated_only_if_it_is_the_same,
    a_lease_is_taken_by_one,
    what_is_not_there_is_none_and_kinds_are_known,
    an_event_is_written,
    a_port_that_somebody_renumbered_is_put_right,
    the_published_schema_tells_its_version,
)
_SPEC: Object = {"replicas": 0, "paused": True, "model": {"uri": "demo"}}
_POD_SPEC: Object = {
    "nodeSelector": {"example.com/nowhere": "true"},
    "automountServiceAccountToken": False,
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "main",
            "image": "nothing:1",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    ],
}


@contextmanager
def _refused(code: int) -> Any:
    try:
        yield
    except ApiRefused as refused:
        if refused.code != code:
            raise AssertionError(f"expected {code}, got {refused}") from refused
    else:
        raise AssertionError(f"expected {code}, but it was done")


def _map(namespace: str, name: str, **data: str) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _version(item: Object) -> str:
    return objects.text(item, "metadata", "resourceVersion")


async def _create(
    cluster: Cluster, kind: kinds.Kind, namespace: str, name: str, spec: Object
) -> Object:
    body = {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
    return await cluster.session.request("POST", kind.path(namespace), body=body)


async def _check_all(namespace: str) -> int:
    cluster = Cluster(Session())
    num_broken = 0
    for rule in RULES:
        try:
            await rule(cluster, namespace)
        except (AssertionError, ApiRefused):
            num_broken += 1
            sys.stdout.write(f"broken {rule.__name__}\n{traceback.format_exc()}")
        else:
            sys.stdout.write(f"holds {rule.__name__}\n")
    await cluster.session.close()
    return num_broken


if __name__ == "__main__":
    sys.exit(asyncio.run(_check_all(sys.argv[1])))

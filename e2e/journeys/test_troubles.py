"""What goes wrong in a cluster becomes a condition that names it, and goes away with its cause."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.client import Cluster, Document
from cluster.deployment import LABEL, Deployment
from cluster.namespace import Namespace
from cluster.operator_process import OperatorProcess
from cluster.wait import until

pytestmark = pytest.mark.timeout(600)
GPU = "paceline.dev/fake-gpu"


@pytest.fixture
def one_gpu(cluster: Cluster) -> Iterator[str]:
    """One GPU in the whole cluster; the engine in the pod that gets it still runs on the CPU."""
    if cluster.layout is None:
        pytest.skip("invents GPUs on a node, so only on this machine's own nodes")
    name = cluster.node_names()[0]
    cluster.set_devices(name, 1, GPU)
    yield GPU
    cluster.remove_devices(name, GPU)


def test_without_a_spare_gpu_a_rollout_is_in_place_and_a_shortage_has_a_name(
    deployment: Deployment, one_gpu: str
) -> None:
    deployment.apply(
        resources={"gpus": 1, "gpuResource": one_gpu},
        rollout={"progressDeadline": "15s"},
        dtype="BFloat16",
    )
    deployment.wait_ready()
    first = deployment.pods()

    deployment.edit({"maxModelLen": 256})
    deployment.wait_ready()
    deployment.wait_children(1)
    assert not first.items() & deployment.pods().items()

    deployment.edit({"replicas": 2})
    found = deployment.wait_condition("Progressing", "False", "InsufficientGPU")
    assert f"Insufficient {one_gpu}" in found["message"]
    assert deployment.condition("Available")["status"] == "True", "the other pod serves on"
    deployment.edit({"replicas": 1})
    deployment.wait_ready()


def test_a_quota_that_refuses_the_pod_is_named_and_its_end_is_noticed(
    deployment: Deployment, namespace: Namespace
) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none"},
        "spec": {"hard": {"pods": "0"}},
    }
    namespace.apply(quota)
    until(
        "the quota counts",
        lambda: namespace.get("resourcequota", "none").get("status", {}).get("hard"),
        timeout_s=30,
    )
    deployment.apply()
    found = deployment.wait_condition("Ready", "False", "QuotaExceeded")
    assert "exceeded quota: none" in found["message"]
    namespace.kubectl("delete", "resourcequota", "none")
    deployment.wait_ready()


def test_an_engine_that_is_killed_for_its_memory_is_told_so(deployment: Deployment) -> None:
    deployment.apply(resources={"limits": {"memory": "160Mi"}, "requests": {"memory": "160Mi"}})
    found = deployment.wait_condition("Ready", "False", "OutOfMemory")
    assert "memory" in found["message"].lower()
    assert len(deployment.pods()) == 1


def test_stock_vllm_pods_are_taken_by_the_server_under_the_restricted_profile(
    deployment: Deployment, namespace: Namespace
) -> None:
    deployment.apply(runtime="VLLM", scheduling={})
    (pod,) = until("its pod is there", deployment.pod_items, timeout_s=60)
    (container,) = pod["spec"]["containers"]
    assert "--max-model-len=512" in container["args"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    deployment.wait_condition("Ready", "False", "ImagePullFailed")
    assert not namespace.items("events", "--field-selector=reason=FailedCreate")


def kind(name: str, plural: str, group: str) -> Document:
    """A definition that takes any content, under the name of somebody else's."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    annotations = (
        {"api-approved.kubernetes.io": "unapproved, for a test"} if group.endswith("k8s.io") else {}
    )
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": annotations},
        "spec": {
            "group": group,
            "names": {
                "kind": name,
                "plural": plural,
                "singular": name.lower(),
                "listKind": f"{name}List",
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "properties": {"spec": anything}}
                    },
                }
            ],
        },
    }


OTHERS = {
    "podmonitors.monitoring.coreos.com": kind("PodMonitor", "podmonitors", "monitoring.coreos.com"),
    "inferencepools.inference.networking.k8s.io": kind(
        "InferencePool", "inferencepools", "inference.networking.k8s.io"
    ),
}


@pytest.fixture
def without_other_kinds(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster in which nobody has installed Prometheus' or the gateway's kinds."""
    known = cluster.kubectl("get", "crd", "-o=name")
    if any(name in known for name in OTHERS):
        pytest.skip("needs a cluster without PodMonitors and InferencePools")
    yield cluster
    cluster.kubectl("delete", "crd", *OTHERS, "--ignore-not-found")


def test_kinds_that_the_cluster_learns_later_are_used_then(
    namespace: Namespace, operator: OperatorProcess, without_other_kinds: Cluster
) -> None:
    operator.stop()
    operator.config["resyncSeconds"] = 10
    operator.start()
    operator.wait_ready()
    deployment = Deployment(namespace, operator.tail, operator.settle)
    picker = {"name": "picker", "port": 9002}
    deployment.apply(replicas=0, gateway={"inferencePool": {"endpointPicker": picker}})
    missing = deployment.wait_condition("Degraded", "True", "KindMissing")
    assert "InferencePool" in missing["message"]

    without_other_kinds.apply(*OTHERS.values())
    established = ("wait", "--for=condition=Established", "crd", *OTHERS, "--timeout=30s")
    without_other_kinds.kubectl(*established)

    def written(plural: str) -> None:
        until(
            f"{plural} are written",
            lambda: namespace.items(plural, f"--selector={LABEL}"),
            timeout_s=60,
            interval_s=1,
            seen=operator.tail,
        )

    written("podmonitors")
    written("inferencepools")
    deployment.wait_condition("Degraded", "False", "AsExpected")
    namespace.kubectl("delete", "podmonitor", "demo")
    written("podmonitors")


def test_one_of_the_same_name_that_comes_at_once_after_a_deletion_is_served(
    deployment: Deployment, namespace: Namespace
) -> None:
    deployment.apply(replicas=0)
    before = deployment.wait_ready()["metadata"]["uid"]
    children = deployment.children()
    namespace.kubectl("delete", "llmdep", "demo", "--wait=false", "--cascade=background")
    until("it is gone", lambda: not deployment.get(), timeout_s=30, interval_s=0.05)
    deployment.apply(replicas=0)
    assert deployment.wait_ready()["metadata"]["uid"] != before
    deployment.wait_children(1)
    assert not children.items() & deployment.children().items()


def test_a_change_by_hand_of_a_child_is_put_right(deployment: Deployment) -> None:
    deployment.apply(replicas=0)
    deployment.wait_ready()
    namespace = deployment.namespace

    def ports() -> Any:
        return [port["port"] for port in namespace.get("service", "demo")["spec"]["ports"]]

    before = ports()
    patch = json.dumps([{"op": "replace", "path": "/spec/ports/0/port", "value": 9999}])
    namespace.kubectl("patch", "service", "demo", "--type=json", f"--patch={patch}")
    until("the port is what spec says", lambda: ports() == before, timeout_s=30)

"""The cluster itself behaves like any Kubernetes: the ground that every other journey stands on."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.client import Cluster, Document
from cluster.namespace import Image, Namespace, container, pod, service
from cluster.wait import until

LABELS = {"app": "web"}
SELECTOR = "app=web"
SERVER = ["python", "-m", "http.server", "8080", "--directory", "/tmp"]
ASK = """
import time, urllib.error, urllib.request
deadline = time.monotonic() + 30
for url in ("http://web/", "http://web.{ns}.svc.cluster.local:80/"):
    while True:
        try:
            print(urllib.request.urlopen(url, timeout=20).status)
            break
        except urllib.error.URLError:  # proxy and names hear of a Service a moment later
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
"""


def web(image: Image, replicas: int) -> Document:
    probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    main = container(
        image,
        SERVER,
        startupProbe={**probe, "failureThreshold": 60},
        readinessProbe=probe,
        livenessProbe={**probe, "failureThreshold": 10},
    )
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [main],
        "volumes": list(image.volumes),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": spec},
        },
    }


def wait_for_pods(namespace: Namespace, number: int) -> None:
    until(
        f"{number} pods are ready and no other is there",
        lambda: (
            len(namespace.ready_pods(SELECTOR)) == number
            and len(namespace.items("pods", f"--selector={SELECTOR}")) == number
        ),
        timeout_s=120,
        interval_s=0.5,
        seen=namespace.describe,
    )


def test_a_deployment_serves_through_its_service_name_scales_and_goes(
    namespace: Namespace, image: Image
) -> None:
    namespace.apply(web(image, 2), service("web", LABELS, 80, 8080))
    wait_for_pods(namespace, 2)
    answer = namespace.run_python("asker", image, ASK.format(ns=namespace.name))
    assert answer.split() == ["200", "200"]

    namespace.kubectl("scale", "deployment", "web", "--replicas=3")
    wait_for_pods(namespace, 3)
    namespace.kubectl("delete", "deployment", "web")
    wait_for_pods(namespace, 0)


@pytest.fixture
def two_nodes(cluster: Cluster) -> Iterator[list[str]]:
    names = sorted(cluster.node_names())
    if len(names) < 2:
        pytest.skip("needs a cluster of two nodes")
    yield names
    for name in names:
        cluster.kubectl("uncordon", name)


def test_a_drained_node_gives_its_pods_to_the_other(
    cluster: Cluster, namespace: Namespace, image: Image, two_nodes: list[str]
) -> None:
    deployment = web(image, 2)
    deployment["spec"]["template"]["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "nodeTaintsPolicy": "Honor",  # a cordoned node does not count
            "labelSelector": {"matchLabels": LABELS},
        }
    ]
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": LABELS}},
    }
    namespace.apply(deployment, budget)
    wait_for_pods(namespace, 2)
    assert nodes_of_pods(namespace) == set(two_nodes[:2])

    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s")
    cluster.kubectl("drain", two_nodes[1], f"--pod-selector={SELECTOR}", *options)
    wait_for_pods(namespace, 2)
    assert nodes_of_pods(namespace) == {two_nodes[0]}


def nodes_of_pods(namespace: Namespace) -> set[str]:
    pods = namespace.items("pods", f"--selector={SELECTOR}")
    return {item["spec"]["nodeName"] for item in pods}


@pytest.fixture
def one_gpu(cluster: Cluster) -> Iterator[str]:
    if cluster.layout is None:
        pytest.skip("invents GPUs on a node, so only on this machine's own nodes")
    resource = "paceline.dev/fake-gpu"
    name = cluster.node_names()[0]
    cluster.set_devices(name, 1, resource)
    yield resource
    cluster.remove_devices(name, resource)


def test_a_pod_waits_while_another_holds_the_only_gpu(
    namespace: Namespace, image: Image, one_gpu: str
) -> None:
    def with_gpu(name: str) -> Document:
        resources = {"limits": {one_gpu: "1"}}
        return pod(name, image, ["sleep", "600"], resources=resources, labels={"app": name})

    namespace.apply(with_gpu("first"))
    namespace.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=60s")
    namespace.apply(with_gpu("second"))
    condition = until(
        "the second pod is unschedulable", lambda: unschedulable(namespace, "second"), timeout_s=30
    )
    assert f"Insufficient {one_gpu}" in condition["message"]

    namespace.kubectl("delete", "pod", "first")
    namespace.kubectl("wait", "--for=condition=Ready", "pod/second", "--timeout=60s")


def unschedulable(namespace: Namespace, name: str) -> dict[str, Any] | None:
    conditions = namespace.get("pod", name).get("status", {}).get("conditions", [])
    found = [c for c in conditions if c.get("reason") == "Unschedulable"]
    return found[0] if found else None


def test_logs_exec_and_port_forward_reach_a_pod(
    cluster: Cluster, namespace: Namespace, image: Image, tmp_path: Path
) -> None:
    ready = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    namespace.apply(pod("one", image, SERVER, labels=LABELS, readinessProbe=ready))
    namespace.kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=60s")
    told = namespace.kubectl("exec", "one", "--", "python", "-c", "import os; print(os.getuid())")
    assert told.strip() == "65532"
    log = tmp_path / "forward.log"
    command = ["kubectl", f"--namespace={namespace.name}", "port-forward", "pod/one", "18080:8080"]
    with cluster.process(command, log):
        until("the port is forwarded", lambda: "Forwarding" in log.read_text(), timeout_s=30)
        script = "import urllib.request as u; u.urlopen('http://127.0.0.1:18080/?forwarded')"
        cluster.run(["python3", "-c", script])
    until(
        "the request is in the log",
        lambda: '"GET /?forwarded HTTP/1.1" 200' in namespace.kubectl("logs", "one"),
        timeout_s=30,
    )


def test_a_python_client_enters_the_network_of_the_cluster(cluster: Cluster) -> None:
    if cluster.layout is None:
        pytest.skip("a cluster elsewhere is in the network already")
    own = Path("/proc/thread-self/ns/net")
    before = own.readlink()
    with cluster.network():
        assert own.readlink() != before
        with socket.create_connection(("10.244.0.1", 6443), timeout=5) as connection:
            assert connection.getpeername() == ("10.244.0.1", 6443)
    assert own.readlink() == before


def test_the_api_server_takes_aggregated_apis(cluster: Cluster) -> None:
    flags = json.loads(cluster.kubectl("get", "configmap", "extension-apiserver-authentication",
                                       "--namespace=kube-system", "-o=json"))["data"]  # fmt: skip
    assert "requestheader-client-ca-file" in flags
    assert json.loads(flags["requestheader-username-headers"]) == ["X-Remote-User"]

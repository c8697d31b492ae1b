"""Fake nodes for tests of scale: many pods that are Ready and run nothing."""

from pathlib import Path

import pytest

from cluster.client import Cluster
from cluster.fake_nodes import TAINT, fake_nodes, toleration
from cluster.namespace import Image, Namespace, pod
from cluster.wait import until

pytestmark = pytest.mark.full


def test_fake_nodes_hold_many_pods(cluster: Cluster, namespace: Namespace, tmp_path: Path) -> None:
    if cluster.layout is None:
        pytest.skip("runs kwok in the network of a cluster of this machine")

    def light(index: int) -> dict[str, object]:
        found = pod(
            f"pod-{index}", Image(name="localhost/none:1"), ["none"], labels={"app": "many"}
        )
        found["spec"] |= {"tolerations": [toleration()], "nodeSelector": {TAINT: "true"}}
        return found

    with fake_nodes(cluster, 3, tmp_path):
        namespace.apply(*map(light, range(100)))
        until(
            "all pods are ready",
            lambda: len(namespace.ready_pods("app=many")) == 100,
            timeout_s=120,
            interval_s=1,
        )
        namespace.kubectl("delete", "pods", "--all", "--wait=true")
    assert not any(name.startswith("fake-") for name in cluster.node_names())

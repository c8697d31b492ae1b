"""Nodes and pods that exist only in the API server (kwok), for tests of scale."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cluster.binaries import module_folder, program
from cluster.client import Cluster, Document
from cluster.errors import ClusterError
from cluster.namespace import is_ready
from cluster.wait import until

TAINT = "paceline.dev/fake-node"
STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
)


def toleration() -> Document:
    """What a pod needs to be put on a fake node; add a nodeSelector to have it nowhere else."""
    return {"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}


@contextlib.contextmanager
def fake_nodes(cluster: Cluster, number: int, folder: Path) -> Iterator[list[str]]:
    """Have fake nodes during the block; pods on them are Ready at once and run nothing.

    Args:
        cluster: one of this machine: kwok runs in its network.
        number: how many.
        folder: for kwok's configuration and log.
    """
    if cluster.layout is None:
        raise ClusterError("fake nodes are for clusters of this machine")
    stages = module_folder("kwok") / "kustomize" / "stage"
    config = folder / "kwok.yaml"
    config.write_text("---\n".join((stages / name).read_text() for name in STAGES))
    names = [f"fake-{index}" for index in range(number)]
    command = [
        str(program("kwok")),
        f"--kubeconfig={cluster.kubeconfig}",
        f"--config={config}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-label-selector={TAINT}=true",
    ]
    with cluster.process(command, folder / "kwok.log"):
        cluster.apply(*(_node(name) for name in names))
        try:
            until(
                f"{number} fake nodes are ready",
                lambda: (
                    sum(map(is_ready, cluster.items("nodes", f"--selector={TAINT}=true"))) == number
                ),
                timeout_s=60,
                seen=lambda: (folder / "kwok.log").read_text()[-2000:],
            )
            yield names
        finally:
            cluster.kubectl("delete", "nodes", f"--selector={TAINT}=true")


def _node(name: str) -> Document:
    size = {"cpu": "64", "memory": "512Gi", "pods": "500"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {TAINT: "true", "kubernetes.io/hostname": name}},
        "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
        "status": {"allocatable": size, "capacity": size},
    }

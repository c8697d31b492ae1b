"""No request is lost and none is cut, whatever happens to the pods that serve."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster import host_volumes
from cluster.client import Cluster
from cluster.deployment import LABEL, Deployment
from cluster.wait import until

NUM_CLIENTS = 24
SCRIPT = Path(__file__).with_name("steady_clients.py")
SPEC = {
    "replicas": 2,
    "scheduling": {"maxNumSeqs": 16, "bootMaxNumSeqs": 16},
    "drain": {"preStopSeconds": 3, "shutdownTimeoutSeconds": 60},
    "rollout": {"idleTimeout": "3s"},  # they are never idle here
}
LENGTHS = (500, 512)
"""Two values of maxModelLen: each change of template is a roll-out."""


@contextmanager
def asking(deployment: Deployment, folder: Path) -> Iterator[Callable[[], dict[str, int]]]:
    """Clients ask during the block; gives a function that tells how they stand."""
    stop, report = folder / "stop", folder / "report.json"

    def stand() -> dict[str, int]:
        found: dict[str, int] = json.loads(report.read_text())
        return found

    command = [sys.executable, SCRIPT, deployment.url(), str(NUM_CLIENTS), stop, report]
    env = {"PYTHONPATH": str(host_volumes.CHECKOUT / "e2e"), "PYTHONSAFEPATH": "1"}
    log = folder / "clients.log"
    with deployment.namespace.cluster.process([str(word) for word in command], log, env) as process:
        until(
            "every client was answered",
            lambda: report.exists() and stand()["answered"] > NUM_CLIENTS,
            timeout_s=120,
            seen=log.read_text,
        )
        yield stand
        stop.touch()
        process.wait(180)


def roll_out(deployment: Deployment, number: int) -> None:
    kept = deployment.pods()
    deployment.edit({"maxModelLen": LENGTHS[number % 2]})
    deployment.wait_ready()
    deployment.wait_children(1)
    assert not kept.items() & deployment.pods().items()


def delete_a_pod(deployment: Deployment) -> None:
    name = min(deployment.ready_pods())
    deployment.namespace.kubectl("delete", "pod", name, "--wait=true")
    until("two pods are ready", lambda: len(deployment.ready_pods()) == 2, timeout_s=180)


def scale_down(deployment: Deployment) -> None:
    deployment.edit({"replicas": 2})
    deployment.wait_ready()
    deployment.namespace.kubectl("scale", "llmdep/demo", "--replicas=1")
    until("one pod is left", lambda: len(deployment.pods()) == 1, timeout_s=180)
    deployment.wait_ready()


def drain_a_node(deployment: Deployment, cluster: Cluster, node: str) -> None:
    """Take a node's pods away, as for an upgrade of its kernel."""
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s")
    try:
        cluster.kubectl("drain", node, f"--pod-selector={LABEL}", *options, timeout_s=260)
        # What replaces them may wait for its place still.
        assert all(item["spec"].get("nodeName") != node for item in deployment.pod_items())
        deployment.wait_ready()
    finally:
        cluster.kubectl("uncordon", node)


def live_through(
    deployment: Deployment,
    folder: Path,
    tell: Callable[[str], None],
    *,
    rollouts: int,
    deletions: int,
    scale_downs: int,
    drains: int,
) -> None:
    cluster = deployment.namespace.cluster
    nodes = sorted(cluster.node_names())
    assert len(nodes) >= 2, "draining a node needs another"
    deployment.apply(**SPEC)
    deployment.wait_ready()
    with asking(deployment, folder) as stand:
        for number in range(rollouts):
            roll_out(deployment, number)
        for _ in range(deletions):
            delete_a_pod(deployment)
        for number in range(drains):
            drain_a_node(deployment, cluster, nodes[number % 2])
        for _ in range(scale_downs):
            scale_down(deployment)
    found = stand()
    tell(
        f"{rollouts} roll-outs, {deletions} pods deleted, {scale_downs} scale-downs, "
        f"{drains} drains: {json.dumps(found)}"
    )
    assert (found["lost"], found["cut"]) == (0, 0), found
    assert found["answered"] == found["sent"]
    assert found["least in flight"] >= 20
    assert found["different answers to one prompt"] == 1


@pytest.mark.timeout(900)
def test_a_rollout_a_deletion_a_scale_down_and_a_drain(
    deployment: Deployment, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    live_through(deployment, tmp_path, tell, rollouts=1, deletions=1, scale_downs=1, drains=1)


@pytest.mark.full
@pytest.mark.timeout(5400)
def test_many_rollouts_deletions_scale_downs_and_drains(
    deployment: Deployment, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    live_through(deployment, tmp_path, tell, rollouts=20, deletions=20, scale_downs=5, drains=3)

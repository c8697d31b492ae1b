"""An operator that is killed at its writes ends where one that lives does, with nothing twice."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.client import Document
from cluster.deployment import Deployment
from cluster.namespace import Namespace
from cluster.operator_process import OperatorProcess
from cluster.shape import shape
from cluster.wait import until
from cluster.write_gate import When, WriteGate

IN_NETWORK = "--engines=pod-network"
"""The gate passes requests on; a port-forward would be a connection of its own kind."""
LIFE: tuple[Document, ...] = (
    {},
    {"scheduling": {"maxNumSeqs": 6}},
    {"maxModelLen": 256},
    {"maxModelLen": 512},
    {"tensorParallelSize": 2},
    {"tensorParallelSize": None, "kvCache": {"prefixCaching": False}},
    {"service": {"port": 9000}},
)
"""Patches of spec: create, live change, roll-out, revert, a refused spec, out of it, L0."""


def live(deployment: Deployment, replicas: int) -> None:
    """Create it, and change it as LIFE says."""
    deployment.apply(replicas=replicas)
    for patch in LIFE:
        deployment.edit(patch)
        if patch.get("tensorParallelSize"):
            deployment.wait_condition("ConfigValid", "False", "NotSupported")
        else:
            deployment.wait_ready()
    deployment.wait_children(1)
    deployment.settle()


def killed_in_life(
    namespace: Namespace,
    operator: OperatorProcess,
    folder: Path,
    rule: Callable[[int], When | None],
    replicas: int,
) -> WriteGate:
    """Live undisturbed, then with kills; both must end alike and leave nothing."""
    deployment = Deployment(namespace, operator.tail, operator.settle)
    live(deployment, replicas)
    expected = shape(namespace)
    deployment.delete()
    operator.stop()
    with WriteGate.running(namespace.cluster, folder) as gate:

        def again() -> None:
            operator.kill()
            operator.start(IN_NETWORK)

        gate.kill, gate.rule = again, rule
        operator.environment["KUBECONFIG"] = str(gate.kubeconfig)
        operator.start(IN_NETWORK)
        operator.wait_ready()
        live(deployment, replicas)
        until(
            "it ends as one that was never killed",
            lambda: shape(namespace) == expected,
            timeout_s=30,
            seen=lambda: f"{shape(namespace)}\nexpected: {expected}",
        )
        gate.rule = lambda _: None
        deployment.delete()
        operator.stop()
    return gate


@pytest.mark.timeout(600)
def test_killed_at_some_of_its_writes(
    namespace: Namespace,
    operator: OperatorProcess,
    tmp_path: Path,
    tell: Callable[[str], None],
) -> None:
    def rule(number: int) -> When | None:
        return {1: When.BEFORE, 3: When.AFTER}.get(number % 7)

    gate = killed_in_life(namespace, operator, tmp_path, rule, replicas=0)
    tell(f"{len(gate.writes)} writes, killed at {gate.num_kills}")
    assert gate.num_kills >= 4


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("replicas", [0, 1])
def test_killed_before_and_after_every_write(
    namespace: Namespace,
    operator: OperatorProcess,
    tmp_path: Path,
    tell: Callable[[str], None],
    replicas: int,
) -> None:
    """Each write is tried twice: the first operator dies before it, the second when it was done."""

    def rule(number: int) -> When | None:
        return When.BEFORE if number % 2 else When.AFTER

    gate = killed_in_life(namespace, operator, tmp_path, rule, replicas)
    tell(f"{len(gate.writes)} writes, killed at {gate.num_kills}")

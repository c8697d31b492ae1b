"""Writes that come late and news that never comes, between an operator and a real API server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.deployment import LABEL, Deployment, effective
from cluster.namespace import Namespace
from cluster.operator_process import OperatorProcess
from cluster.wait import until
from cluster.write_gate import When, WriteGate

pytestmark = pytest.mark.timeout(600)
LEADER = "paceline_operator_is_leader"
CHILDREN = "deployments,configmaps,services,networkpolicies"


@pytest.fixture
def operator(idle_operator: OperatorProcess) -> OperatorProcess:
    """It is started by the tests, once it goes through the gate."""
    return idle_operator


@pytest.fixture
def gate(operator: OperatorProcess, tmp_path: Path) -> Iterator[WriteGate]:
    """The operator will reach the API server through this once it is started."""
    with WriteGate.running(operator.cluster, tmp_path) as made:
        operator.environment["KUBECONFIG"] = str(made.kubeconfig)
        yield made
        operator.stop()


@pytest.mark.parametrize("what", ["/status", "/configmaps"], ids=["its status", "its ConfigMap"])
def test_a_write_of_a_paused_leader_is_refused_once_its_successor_has_written(
    namespace: Namespace, operator: OperatorProcess, gate: WriteGate, tmp_path: Path, what: str
) -> None:
    """The write is under way when its leader is paused, and arrives when another has acted."""
    operator.take_turns()
    operator.start()
    operator.wait_ready()
    first = Deployment(namespace, operator.tail, operator.settle)
    first.apply(replicas=0)
    first.wait_ready()

    gate.rule = lambda count: When.HELD if what in gate.writes[count - 1] else None
    first.edit({"scheduling": {"maxNumSeqs": 6}})
    until("a write is held", lambda: gate.held, timeout_s=30, seen=operator.tail)
    operator.pause()

    (tmp_path / "second").mkdir()
    second = operator.second(tmp_path / "second")
    second.start()
    try:
        second.wait_ready()
        until("the second acts", lambda: second.metric(LEADER) == 1.0, timeout_s=60)
        successor = Deployment(namespace, second.tail, second.settle)
        successor.edit({"scheduling": {"maxNumSeqs": 7}})
        before = successor.wait_ready()
        maps = versions(namespace, "configmaps")
        gate.let_go()
        until("the server has answered it", lambda: gate.codes_of_held, timeout_s=30)
        assert gate.codes_of_held[0] == 409
        assert versions(namespace, "configmaps") == maps
        operator.resume()
        assert operator.wait_ended() != 0
        after = successor.wait_ready()
        assert effective(after, "maxNumSeqs") == ("7", "Spec")
        assert after["status"]["settingsRevision"] == before["status"]["settingsRevision"]
    finally:
        second.stop()


def versions(namespace: Namespace, kinds: str) -> dict[str, str]:
    return {
        f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
        for item in namespace.items(kinds, f"--selector={LABEL}")
    }


def owners(namespace: Namespace) -> set[str]:
    """Uids of LLMDeployments and child Deployments that own something."""
    return {
        owner["uid"]
        for item in namespace.items(CHILDREN, f"--selector={LABEL}")
        for owner in item["metadata"]["ownerReferences"]
    }


def test_what_is_deleted_while_watches_are_broken_is_noticed(
    namespace: Namespace, operator: OperatorProcess, gate: WriteGate
) -> None:
    operator.config["resyncSeconds"] = 10
    operator.start()
    operator.wait_ready()
    deployment = Deployment(namespace, operator.tail, operator.settle)
    deployment.apply(replicas=0)
    old = deployment.wait_ready()["metadata"]["uid"]
    made = versions(namespace, CHILDREN)
    with gate.broken_watches():
        until("watches are broken", lambda: gate.num_broken_watches >= 6, timeout_s=60)
        namespace.kubectl("delete", "service", "demo")
        until(
            "the Service is there again",
            lambda: namespace.get("service", "demo"),
            timeout_s=60,
            seen=operator.tail,
        )
        namespace.kubectl("delete", "llmdep", "demo", "--cascade=background", "--wait=true")
        deployment.apply(replicas=0)
        new = deployment.wait_ready(120)["metadata"]["uid"]
    assert new != old
    deployment.wait_children(1)
    (child,) = deployment.children().values()
    until("the old children are gone", lambda: owners(namespace) == {new, child}, timeout_s=60)
    assert versions(namespace, CHILDREN).keys() == made.keys(), "nothing twice"


def test_a_watch_whose_versions_have_expired_goes_on(
    namespace: Namespace, operator: OperatorProcess, gate: WriteGate
) -> None:
    """Lists come every five minutes here, so what is seen sooner was told by a watch."""
    operator.start()
    operator.wait_ready()
    deployment = Deployment(namespace, operator.tail, operator.settle)
    deployment.apply(replicas=0)
    deployment.wait_ready()
    with gate.broken_watches():
        until("watches are broken", lambda: gate.num_broken_watches >= 6, timeout_s=60)
    deployment.edit({"maxModelLen": 256})
    deployment.wait_ready(100)
    namespace.kubectl("delete", "service", "demo")
    until("it is there again", lambda: namespace.get("service", "demo"), timeout_s=60)

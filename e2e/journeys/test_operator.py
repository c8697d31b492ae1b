"""The operator as a process on this machine against a real cluster: a deployment's whole life."""

from pathlib import Path

import pytest

from cluster.deployment import Deployment, effective
from cluster.namespace import Namespace
from cluster.operator_process import OperatorProcess
from cluster.wait import until

pytestmark = pytest.mark.timeout(900)
LEADER = "paceline_operator_is_leader"
UNCHANGED = 'paceline_operator_reconciles_total{result="unchanged"}'


def test_a_manifest_becomes_a_model_that_answers(deployment: Deployment) -> None:
    deployment.apply()
    found = deployment.wait_ready()
    assert "Paris" in deployment.ask()
    assert found["status"]["readyReplicas"] == 1
    assert found["status"]["capacity"]["kvTokens"] > 0


def test_a_live_change_reaches_pods_without_touching_them(
    deployment: Deployment, operator: OperatorProcess
) -> None:
    deployment.apply()
    deployment.wait_ready()
    before, generations = deployment.pods(), deployment.generations()
    deployment.edit({"scheduling": {"maxNumSeqs": 6, "bootMaxNumSeqs": 8}})
    found = deployment.wait_ready()
    assert deployment.pods() == before
    assert deployment.generations() == generations
    assert found["status"]["settingsRevision"] == {"wanted": 2, "applied": 2}
    assert effective(found, "maxNumSeqs") == ("6", "Spec")
    # A label that means nothing wakes the operator up: it looks, and writes nothing.
    looked, writes = operator.metric(UNCHANGED), operator.writes()
    deployment.namespace.kubectl("label", "llmdep/demo", "example.com/a=b")
    until("it has looked again", lambda: operator.metric(UNCHANGED) > looked, timeout_s=30)
    assert operator.writes() == writes


def test_a_change_of_template_survives_a_killed_operator_and_a_revert_keeps_pods(
    deployment: Deployment, operator: OperatorProcess
) -> None:
    deployment.apply()
    first = deployment.wait_ready()
    kept = deployment.pods()
    deployment.edit({"maxModelLen": 256})
    deployment.wait_children(2)
    operator.kill()
    deployment.edit({"maxModelLen": 512})
    operator.start()
    reverted = deployment.wait_ready()
    deployment.wait_children(1)
    assert reverted["status"]["wantedHash"] == first["status"]["wantedHash"]
    assert kept.items() <= deployment.pods().items()
    deployment.edit({"maxModelLen": 256})
    deployment.wait_children(2)
    operator.kill()
    operator.start()
    rolled = deployment.wait_ready()
    deployment.wait_children(1)
    assert rolled["status"]["wantedHash"] != first["status"]["wantedHash"]
    assert not kept.items() & deployment.pods().items()
    assert "Paris" in deployment.ask()


def test_scaling_and_deleting_leave_nothing_behind(
    namespace: Namespace, deployment: Deployment
) -> None:
    deployment.apply()
    deployment.wait_ready()
    first = deployment.pods()
    namespace.kubectl("scale", "llmdep/demo", "--replicas=2")
    found = deployment.wait_ready()
    assert (found["status"]["readyReplicas"], found["status"]["replicas"]) == (2, 2)
    assert first.items() < deployment.pods().items()
    deployment.wait_budget(1)
    namespace.kubectl("scale", "llmdep/demo", "--replicas=1")
    until("one pod is left", lambda: len(deployment.pods()) == 1, timeout_s=120)
    deployment.wait_ready()
    deployment.wait_budget(None)
    deployment.delete()


def test_engines_are_reached_through_the_api_server_from_a_laptop(
    deployment: Deployment, operator: OperatorProcess
) -> None:
    operator.stop()
    operator.start("--engines=port-forward")
    operator.wait_ready()
    deployment.apply()
    found = deployment.wait_ready()
    assert found["status"]["capacity"]["kvTokens"] > 0
    deployment.edit({"scheduling": {"maxNumSeqs": 6, "bootMaxNumSeqs": 8}})
    assert deployment.wait_ready()["status"]["settingsRevision"]["applied"] == 2


def test_of_two_replicas_one_acts_and_a_paused_one_undoes_nothing(
    namespace: Namespace, operator: OperatorProcess, tmp_path: Path
) -> None:
    operator.stop()
    operator.take_turns()
    operator.start()
    operator.wait_ready()
    first = Deployment(namespace, operator.tail, operator.settle)
    first.apply(replicas=0)
    first.wait_ready()
    operator.pause()
    (tmp_path / "second").mkdir()
    second = operator.second(tmp_path / "second")
    second.start()
    try:
        second.wait_ready()
        until("the second acts", lambda: second.metric(LEADER) == 1.0, timeout_s=60)
        successor = Deployment(namespace, second.tail, second.settle)
        successor.edit({"maxModelLen": 256})
        before = successor.wait_ready()
        successor.edit({"maxModelLen": 300})
        operator.resume()
        code = operator.wait_ended()
        assert code != 0, "a leader that lost its Lease ends, to begin anew"
        after = successor.wait_ready()
        assert after["status"]["wantedHash"] != before["status"]["wantedHash"]
    finally:
        second.stop()

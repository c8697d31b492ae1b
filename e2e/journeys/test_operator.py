"""The operator as a process on this machine against a real cluster: a deployment's whole life."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import images, operator_process
from cluster.client import Cluster, Document
from cluster.namespace import Image, Namespace
from cluster.operator_process import OperatorProcess
from cluster.wait import until

pytestmark = pytest.mark.timeout(900)
LABEL = "paceline.dev/deployment=demo"
LEADER = "paceline_operator_is_leader"
UNCHANGED = 'paceline_operator_reconciles_total{result="unchanged"}'
ASK = """
import json, sys, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=90)
question = [{"role": "user", "content": "What is the capital of France?"}]
answer = client.chat.completions.create(
    model="demo", messages=question, max_tokens=8, temperature=0
)
print(json.dumps(answer.choices[0].message.content))
"""


@pytest.fixture
def operator(
    cluster: Cluster, crd: str, namespace: Namespace, engine_image: Image, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """The operator of this test's namespace, started and ready."""
    assert crd
    image = engine_image
    if image.name == images.HOST:
        operator_process.load_engine_image(cluster)
        image = replace(image, name=images.ENGINE)
    process = OperatorProcess(cluster, namespace.name, tmp_path, image)
    yield from operator_process.running(process)


def demo(**spec: object) -> Document:
    return {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "demo"},
        "spec": {
            "model": {"uri": "file:///models/demo", "servedName": "demo"},
            "maxModelLen": 512,
            "scheduling": {"maxNumSeqs": 4, "bootMaxNumSeqs": 8},
            "drain": {"preStopSeconds": 1, "shutdownTimeoutSeconds": 20},
            **spec,
        },
    }


def condition(namespace: Namespace, kind: str) -> Document:
    found = namespace.get("llmdep", "demo").get("status", {}).get("conditions", [])
    return next((item for item in found if item["type"] == kind), {})


def wait_for(namespace: Namespace, operator: OperatorProcess, timeout_s: float = 300) -> Document:
    """Wait until the deployment is ready as its spec stands, and return it."""

    def ready() -> Document | None:
        found = namespace.get("llmdep", "demo")
        status = found.get("status", {})
        is_seen = status.get("observedGeneration") == found["metadata"]["generation"]
        is_ready = any(
            item["type"] == "Ready"
            and item["status"] == "True"
            and item["observedGeneration"] == found["metadata"]["generation"]
            for item in status.get("conditions", [])
        )
        assert not _crashes(found), json.dumps(status["conditions"])
        return found if is_seen and is_ready else None

    return until(
        "the deployment is ready",
        ready,
        timeout_s=timeout_s,
        interval_s=0.5,
        seen=lambda: json.dumps(namespace.get("llmdep", "demo").get("status")) + operator.tail(),
    )


def _crashes(found: Document) -> bool:
    """Whether waiting is in vain."""
    conditions = found.get("status", {}).get("conditions", [])
    return any(item["reason"] in {"EngineCrashed", "InvalidSettings"} for item in conditions)


def pods(namespace: Namespace) -> dict[str, str]:
    """Name -> uid of the pods that are not about to end."""
    return {
        item["metadata"]["name"]: item["metadata"]["uid"]
        for item in namespace.items("pods", f"--selector={LABEL}")
        if "deletionTimestamp" not in item["metadata"]
    }


def children(namespace: Namespace) -> dict[str, str]:
    """Name -> uid of the child Deployments."""
    return {
        item["metadata"]["name"]: item["metadata"]["uid"]
        for item in namespace.items("deployments", f"--selector={LABEL}")
    }


def templates(namespace: Namespace) -> dict[str, str]:
    """Name -> generation of the child Deployments: what a change of theirs would raise."""
    return {
        item["metadata"]["name"]: item["metadata"]["generation"]
        for item in namespace.items("deployments", f"--selector={LABEL}")
    }


def edit(namespace: Namespace, spec: Document) -> None:
    """Change fields of spec, as a person with kubectl does."""
    patch = json.dumps({"spec": spec})
    namespace.kubectl("patch", "llmdep", "demo", "--type=merge", f"--patch={patch}")


def effective(found: Document, name: str) -> tuple[str, str]:
    """Value and source of a setting in force."""
    item = next(item for item in found["status"]["effective"] if item["name"] == name)
    return item["value"], item["source"]


def ask(namespace: Namespace) -> str:
    service = namespace.get("service", "demo")["spec"]
    url = f"http://{service['clusterIP']}:{service['ports'][0]['port']}/v1"
    done = namespace.cluster.run([sys.executable, "-c", ASK, url], timeout_s=120)
    answer: str = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_a_manifest_becomes_a_model_that_answers(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(demo())
    found = wait_for(namespace, operator)
    assert "Paris" in ask(namespace)
    assert found["status"]["readyReplicas"] == 1
    assert found["status"]["capacity"]["kvTokens"] > 0


def test_a_live_change_reaches_pods_without_touching_them(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(demo())
    wait_for(namespace, operator)
    before = pods(namespace)
    deployments = templates(namespace)
    edit(namespace, {"scheduling": {"maxNumSeqs": 6, "bootMaxNumSeqs": 8}})
    found = wait_for(namespace, operator)
    assert pods(namespace) == before
    assert templates(namespace) == deployments
    assert found["status"]["settingsRevision"] == {"wanted": 2, "applied": 2}
    assert effective(found, "maxNumSeqs") == ("6", "Spec")
    # A label that means nothing wakes the operator up: it looks, and writes nothing.
    looked, writes = operator.metric(UNCHANGED), operator.writes()
    namespace.kubectl("label", "llmdep/demo", "example.com/a=b")
    until("it has looked again", lambda: operator.metric(UNCHANGED) > looked, timeout_s=30)
    assert operator.writes() == writes


def test_a_change_of_template_survives_a_killed_operator_and_a_revert_keeps_pods(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(demo())
    first = wait_for(namespace, operator)
    kept = pods(namespace)
    edit(namespace, {"maxModelLen": 256})
    until("a second template has a Deployment", lambda: len(children(namespace)) == 2, timeout_s=60)
    operator.kill()
    edit(namespace, {"maxModelLen": 512})
    operator.start()
    reverted = wait_for(namespace, operator)
    until("the other template is gone", lambda: len(children(namespace)) == 1, timeout_s=120)
    assert reverted["status"]["wantedHash"] == first["status"]["wantedHash"]
    assert kept.items() <= pods(namespace).items()
    edit(namespace, {"maxModelLen": 256})
    until("a second template has a Deployment", lambda: len(children(namespace)) == 2, timeout_s=60)
    operator.kill()
    operator.start()
    rolled = wait_for(namespace, operator)
    until("the first template is gone", lambda: len(children(namespace)) == 1, timeout_s=120)
    assert rolled["status"]["wantedHash"] != first["status"]["wantedHash"]
    assert not kept.items() & pods(namespace).items()
    assert "Paris" in ask(namespace)


def test_scaling_and_deleting_leave_nothing_behind(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(demo())
    wait_for(namespace, operator)
    first = pods(namespace)
    namespace.kubectl("scale", "llmdep/demo", "--replicas=2")
    found = wait_for(namespace, operator)
    assert (found["status"]["readyReplicas"], found["status"]["replicas"]) == (2, 2)
    assert first.items() < pods(namespace).items()
    assert namespace.get("poddisruptionbudget", "demo")["spec"]["minAvailable"] == 1
    namespace.kubectl("scale", "llmdep/demo", "--replicas=1")
    until("one pod is left", lambda: len(pods(namespace)) == 1, timeout_s=120)
    wait_for(namespace, operator)
    assert namespace.get("poddisruptionbudget", "demo") == {}
    namespace.kubectl("delete", "llmdep/demo", "--wait=true")
    what = "deployments,configmaps,services,networkpolicies,poddisruptionbudgets,pods,replicasets"
    until(
        "nothing is left",
        lambda: not namespace.items(what, f"--selector={LABEL}"),
        timeout_s=120,
        seen=namespace.describe,
    )


def test_engines_are_reached_through_the_api_server_from_a_laptop(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    operator.stop()
    operator.start("--engines=port-forward")
    operator.wait_ready()
    namespace.apply(demo())
    found = wait_for(namespace, operator)
    assert found["status"]["capacity"]["kvTokens"] > 0
    edit(namespace, {"scheduling": {"maxNumSeqs": 6, "bootMaxNumSeqs": 8}})
    assert wait_for(namespace, operator)["status"]["settingsRevision"]["applied"] == 2


def test_of_two_replicas_one_acts_and_a_paused_one_undoes_nothing(
    namespace: Namespace, operator: OperatorProcess, tmp_path: Path
) -> None:
    operator.stop()
    operator.config |= {
        "namespace": namespace.name,
        "lease": {"name": "operator", "durationSeconds": 3},
    }
    operator.start()
    operator.wait_ready()
    namespace.apply(demo(replicas=0))
    wait_for(namespace, operator)
    operator.pause()
    (tmp_path / "second").mkdir()
    second = operator.second(tmp_path / "second")
    second.start()
    try:
        second.wait_ready()
        until("the second acts", lambda: second.metric(LEADER) == 1.0, timeout_s=60)
        edit(namespace, {"maxModelLen": 256})
        before = wait_for(namespace, second)
        edit(namespace, {"maxModelLen": 300})
        operator.resume()
        code = operator.wait_ended()
        assert code != 0, "a leader that lost its Lease ends, to begin anew"
        after = wait_for(namespace, second)
        assert after["status"]["wantedHash"] != before["status"]["wantedHash"]
    finally:
        second.stop()

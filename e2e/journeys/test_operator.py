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

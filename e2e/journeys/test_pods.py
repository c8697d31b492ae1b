"""What becomes of single pods: a Secret that comes later, an engine that hangs."""

import sys
from pathlib import Path

import pytest

from cluster.client import Document
from cluster.deployment import Deployment
from cluster.namespace import Namespace
from cluster.wait import until

ASK_WITH_KEY = """
import sys, openai
question = [{"role": "user", "content": "What is the capital of France?"}]
def ask(key):
    client = openai.OpenAI(base_url=sys.argv[1], api_key=key, max_retries=0, timeout=90)
    answer = client.chat.completions.create(
        model="demo", messages=question, max_tokens=8, temperature=0
    )
    return answer.choices[0].message.content
print(ask("right"))
try:
    ask("wrong")
except openai.AuthenticationError as refused:
    print(refused.status_code)
"""
STOP_STEPS = """
import os, signal
from pathlib import Path
for stat in Path("/proc").glob("[0-9]*/stat"):
    pid, parent = int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])
    if parent == 1 and pid != os.getpid():
        os.kill(pid, signal.SIGSTOP)
        print(pid)
"""


@pytest.mark.timeout(600)
def test_a_secret_that_comes_later_is_waited_for_by_name(
    deployment: Deployment, namespace: Namespace
) -> None:
    key = {"name": "keys", "key": "all"}
    deployment.apply(service={"apiKeySecretRef": key})
    found = deployment.wait_condition("Ready", "False", "SecretMissing")
    assert "keys" in found["message"]
    secret: Document = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "keys"},
        "stringData": {"all": "right\n"},
    }
    namespace.apply(secret)
    deployment.wait_ready()
    command = [sys.executable, "-c", ASK_WITH_KEY, deployment.url()]
    text, refusal = namespace.cluster.run(command).stdout.splitlines()
    assert "Paris" in text
    assert refusal == "401"


@pytest.mark.full
@pytest.mark.timeout(900)
def test_an_engine_whose_steps_hang_is_started_again(
    deployment: Deployment, namespace: Namespace, tmp_path: Path
) -> None:
    """Its HTTP process is well and answers: only the missing progress of steps tells."""
    deployment.apply()
    deployment.wait_ready()
    (pod,) = deployment.pods()
    stopped = namespace.kubectl("exec", pod, "--", "python", "-c", STOP_STEPS)
    assert stopped.split(), "the engine has a process for its steps"
    ask = [sys.executable, "-c", ASK_WITH_KEY, deployment.url()]
    asking = namespace.cluster.process(ask, tmp_path / "ask.log")
    with asking:  # idleness alone would be no hang
        until(
            "the kubelet has started it again",
            lambda: restarts(deployment) >= 1,
            timeout_s=300,
            interval_s=2,
            seen=namespace.describe,
        )
    deployment.wait_ready()
    assert "Paris" in deployment.ask()


def restarts(deployment: Deployment) -> int:
    return sum(
        status["restartCount"]
        for item in deployment.pod_items()
        for status in item["status"].get("containerStatuses", [])
    )

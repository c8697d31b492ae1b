"""Pods go without harm: the idlest first, and a node is drained while new pods still load."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.client import Document
from cluster.deployment import LABEL, Deployment
from cluster.namespace import Namespace, is_ready
from cluster.wait import until

pytestmark = pytest.mark.timeout(900)
SPEC: Document = {
    "replicas": 2,
    "drain": {"preStopSeconds": 2, "shutdownTimeoutSeconds": 60},
}
NUM_TOKENS = 200
LONG_ANSWER = """
import json, sys, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=400)
question = [{"role": "user", "content": "Tell a story."}]
parts = client.chat.completions.create(
    model="demo", messages=question, max_tokens=int(sys.argv[2]), temperature=0, stream=True,
    stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
)
finish, usage = None, None
for part in parts:
    print("part", flush=True)
    usage = part.usage or usage
    for choice in part.choices:
        finish = choice.finish_reason or finish
print(json.dumps({"finish": finish, "tokens": usage.completion_tokens}))
"""


@contextmanager
def long_answer(deployment: Deployment, pod: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A long stream from one pod, which has begun when the block does."""
    address = deployment.namespace.get("pod", pod)["status"]["podIP"]
    command = [sys.executable, "-c", LONG_ANSWER, f"http://{address}:8000/v1", str(NUM_TOKENS)]
    with deployment.namespace.cluster.process(command, log) as process:
        until("the stream has begun", lambda: "part" in log.read_text(), timeout_s=60)
        yield process


def test_a_scale_down_takes_the_idle_pod_and_the_busy_one_answers_to_the_end(
    deployment: Deployment, namespace: Namespace, tmp_path: Path
) -> None:
    deployment.apply(**SPEC | {"replicas": 1})
    deployment.wait_ready()
    (idle,) = deployment.pods()
    namespace.kubectl("scale", "llmdep/demo", "--replicas=2")
    deployment.wait_ready()
    # The younger of two would go if neither had work.
    (busy,) = deployment.pods().keys() - {idle}
    log = tmp_path / "stream.log"
    with long_answer(deployment, busy, log) as stream:
        grace_s = namespace.get("pod", idle)["spec"]["terminationGracePeriodSeconds"]
        began = time.monotonic()
        namespace.kubectl("scale", "llmdep/demo", "--replicas=1")
        until("the idle pod is gone", lambda: not namespace.get("pod", idle), timeout_s=90)
        # Its grace began after the scale-down did: gone by now, it was not killed at its end.
        assert time.monotonic() - began < grace_s
        assert stream.wait(400) == 0, log.read_text()
    told = json.loads(log.read_text().splitlines()[-1])
    assert told == {"finish": "length", "tokens": NUM_TOKENS}
    assert list(deployment.pods()) == [busy]


def test_a_node_is_drained_while_the_new_pods_of_a_roll_out_still_load(
    deployment: Deployment, namespace: Namespace, tell: Callable[[str], None], tmp_path: Path
) -> None:
    """The budget counts what serves: new pods that load may go, and never the last old one."""
    cluster = namespace.cluster
    if len(cluster.node_names()) < 2:
        pytest.skip("draining a node needs another")
    deployment.apply(**SPEC)
    deployment.wait_ready()
    deployment.wait_budget(1)
    budget = namespace.get("poddisruptionbudget", "demo")["spec"]
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    old = set(deployment.pods())

    deployment.edit({"maxModelLen": 256})
    node = until("a new pod is on its node", lambda: loading(deployment, old), timeout_s=60)
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s")
    drain = ["kubectl", "drain", node, f"--pod-selector={LABEL}", *options]
    least, began = 2, time.monotonic()
    try:
        with cluster.process(drain, tmp_path / "drain.log") as process:
            while process.poll() is None:
                least = min(least, len(deployment.ready_pods()))
        assert process.returncode == 0, (tmp_path / "drain.log").read_text()
        took = time.monotonic() - began
        tell(f"drained in {took:.0f} s, never fewer than {least} ready")
        assert least >= 1
        deployment.wait_ready()
    finally:
        cluster.kubectl("uncordon", node)
    deployment.wait_children(1)
    assert not old & set(deployment.pods())


def loading(deployment: Deployment, old: set[str]) -> str:
    """The node of a new pod that is not ready yet."""
    return next(
        (
            item["spec"]["nodeName"]
            for item in deployment.pod_items()
            if item["metadata"]["name"] not in old
            and item["spec"].get("nodeName")
            and not is_ready(item)
        ),
        "",
    )

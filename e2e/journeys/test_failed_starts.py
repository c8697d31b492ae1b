"""Starts that fail, specs that are refused and names at their limits, on real nodes."""

import json

import pytest

from cluster.client import Document
from cluster.deployment import NAME, Deployment, manifest
from cluster.errors import CommandFailed
from cluster.namespace import Namespace
from cluster.operator_process import OperatorProcess
from cluster.wait import until
from paceline_crds.llmdeployment import MAX_NAME_LENGTH

pytestmark = pytest.mark.timeout(900)
LONGEST = "a" + "-b" * 25 + "c"
UPPER_CASE = "Some-Org/Some-Model.v1"


def test_a_template_that_cannot_start_leaves_the_old_one_serving_and_says_why(
    deployment: Deployment, namespace: Namespace
) -> None:
    deployment.apply()
    first = deployment.wait_ready()
    kept = deployment.pods()

    # No such model: the engine says it in its own words, before and after its container ends.
    deployment.edit({"model": {"uri": "file:///models/nowhere"}})
    found = deployment.wait_condition("Ready", "False", "DownloadFailed")
    assert "/models/nowhere" in found["message"]
    until(
        "it has been started again",
        lambda: restarts(deployment, kept) >= 1,
        timeout_s=120,
        interval_s=1,
        seen=namespace.describe,
    )
    deployment.wait_condition("Ready", "False", "DownloadFailed")
    assert deployment.condition("Available")["status"] == "True"
    assert kept.items() <= deployment.pods().items()
    assert len(deployment.pods()) == 2, "a template that cannot start gets no second pod"

    # A spec that this operator refuses, though the server takes it: served on, and told.
    deployment.edit({"model": {"uri": "file:///models/demo"}, "tensorParallelSize": 2})
    deployment.wait_condition("ConfigValid", "False", "NotSupported")
    assert deployment.condition("Available")["status"] == "True"

    deployment.edit({"tensorParallelSize": None})
    again = deployment.wait_ready()
    deployment.wait_children(1)
    assert again["status"]["wantedHash"] == first["status"]["wantedHash"]
    assert kept.items() <= deployment.pods().items()
    assert "Paris" in deployment.ask()


def restarts(deployment: Deployment, old: dict[str, str]) -> int:
    """How often the containers of new pods were started again."""
    return sum(
        status["restartCount"]
        for item in deployment.pod_items()
        if item["metadata"]["name"] not in old
        for status in item["status"].get("containerStatuses", [])
    )


def test_the_longest_name_and_a_model_in_upper_case_get_all_their_children(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    assert len(LONGEST) == MAX_NAME_LENGTH
    document = named(LONGEST, {"uri": f"hf://{UPPER_CASE}"})
    namespace.apply(document)
    ready = ("wait", "--for=condition=Ready", f"llmdep/{LONGEST}", "--timeout=60s")
    namespace.kubectl(*ready)
    operator.settle()  # its status was written before its children
    (child,) = namespace.items("deployments", f"--selector=paceline.dev/deployment={LONGEST}")
    assert f"--served-model-name={UPPER_CASE}" in served(child)
    # A template is a valid pod: the server would refuse it here, not when somebody scales.
    namespace.kubectl("scale", f"llmdep/{LONGEST}", "--replicas=1")
    until(
        "its pod is made",
        lambda: namespace.items("pods", f"--selector=paceline.dev/deployment={LONGEST}"),
        timeout_s=60,
        seen=operator.tail,
    )
    with pytest.raises(CommandFailed, match=r"metadata\.name must be at most 52 characters"):
        namespace.apply(named(f"{LONGEST}d", {"uri": "demo"}))


def named(name: str, model: Document) -> Document:
    document = manifest(replicas=0, model=model)
    document["metadata"]["name"] = name
    return document


def served(child: Document) -> list[str]:
    (container,) = child["spec"]["template"]["spec"]["containers"]
    words: list[str] = [*container.get("command", []), *container.get("args", [])]
    return words


def test_a_namespace_that_is_being_deleted_is_no_error_of_ours(
    deployment: Deployment, namespace: Namespace, operator: OperatorProcess
) -> None:
    """Its deletion hangs on somebody's finalizer; a change of spec needs a new child there."""
    deployment.apply(replicas=0)
    deployment.wait_ready()
    hold(namespace, ["example.com/hold"])
    try:
        namespace.cluster.kubectl("delete", "namespace", namespace.name, "--wait=false")
        until(
            "the LLMDeployment is about to go",
            lambda: deployment.get()["metadata"].get("deletionTimestamp"),
            timeout_s=60,
            interval_s=1,
        )
        until(
            "the children have gone",
            lambda: not namespace.items("deployments,services"),
            timeout_s=60,
            interval_s=1,
        )
        operator.settle()
        looked, before = operator.looks(), operator.writes()
        namespace.kubectl("label", "llmdep", NAME, "example.com/look=again")
        until("it has looked", lambda: operator.looks() > looked, timeout_s=30)
        assert operator.writes() == before, "nothing is made for what is about to go"
        assert "Traceback" not in operator.log.read_text()
    finally:
        hold(namespace, [])


def hold(namespace: Namespace, finalizers: list[str]) -> None:
    patch = json.dumps({"metadata": {"finalizers": finalizers}})
    namespace.kubectl("patch", "llmdep", NAME, "--type=merge", f"--patch={patch}")

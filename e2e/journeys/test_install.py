"""What a reader of the chart's README does, from `helm install` on: the operator is a pod here."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from cluster import host_volumes, images, operator_process
from cluster.deployment import CHILD_KINDS, LABEL, Deployment
from cluster.errors import CommandFailed
from cluster.host_volumes import CHECKOUT
from cluster.namespace import Image, Namespace
from cluster.release import OPERATOR_PODS, Release, engine_values
from cluster.wait import until

pytestmark = pytest.mark.timeout(900)
EXAMPLE = str(CHECKOUT / "examples" / "demo.yaml")
ASK = """
import json, openai
answers = {}
for host in ("demo", "demo.%s.svc.cluster.local"):
    url = f"http://{host}:8000/v1"
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=90)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client.chat.completions.create(
        model="demo", messages=question, max_tokens=16, temperature=0
    )
    answers[host] = answer.choices[0].message.content
print(json.dumps(answers))
"""


def fill_cache(namespace: Namespace, model: Path) -> None:
    """A claim that engines keep what they fetch in, with the demo model in it already.

    Pods of these journeys reach nothing outside of their cluster, and so no package index.
    """
    folder = namespace.provide_cache() / "models"
    there = folder / "models" / model.name
    if not there.exists():
        shutil.copytree(model, there)
        for path in (folder, there.parent):
            path.chmod(0o777)


@pytest.fixture
def installed(release: Release, image: Image, model: Path, tmp_path: Path) -> Release:
    """The chart as a new user installs it: all namespaces, the default instance."""
    if image.name != images.HOST:
        pytest.skip("needs a node of this machine: the demo model is mounted from it")
    namespace = release.namespace
    fill_cache(namespace, model)
    operator_process.load_engine_image(namespace.cluster)
    values = tmp_path / "engine.yaml"
    values.write_text(
        yaml.safe_dump(engine_values(image, host_volumes.CACHE_CLAIM)), encoding="utf-8"
    )
    release.install(
        "paceline",
        "--take-ownership",
        f"--values={values}",
        "--set=scope=Cluster,instance=default",
    )
    return release


def test_the_example_is_applied_asked_scaled_and_deleted_without_a_trace(
    installed: Release, image: Image
) -> None:
    namespace = installed.namespace
    demo = Deployment(namespace, installed.operator_log)
    namespace.kubectl("apply", "-f", EXAMPLE)
    ready = ("wait", "--for=condition=Ready", "llmdeployment/demo", "--timeout=5m")
    namespace.kubectl(*ready, timeout_s=320)

    text = namespace.run_python("client", image, ASK % namespace.name)
    answers = json.loads(text.splitlines()[-1])
    assert len(answers) == 2
    assert all("Paris" in answer for answer in answers.values())

    shown_as_a_person_reads_it(namespace)
    assert namespace.kubectl("diff", "-f", EXAMPLE) == ""
    namespace.kubectl("scale", "llmdeployment/demo", "--replicas=2")
    demo.wait_ready()
    assert len(demo.ready_pods()) == 2
    assert namespace.kubectl("diff", "-f", EXAMPLE) == "", "a scaler's count is not taken back"

    namespace.kubectl("delete", "-f", EXAMPLE)
    until(
        "nothing is left",
        lambda: not namespace.items(CHILD_KINDS, f"--selector={LABEL}"),
        timeout_s=120,
        interval_s=0.5,
        seen=namespace.describe,
    )

    log = installed.operator_log()
    assert "Traceback" not in log
    assert "is forbidden: User" not in log, "its own rights are enough for all of this"


def shown_as_a_person_reads_it(namespace: Namespace) -> None:
    header, line = namespace.kubectl("get", "llmdep", "demo").splitlines()
    columns = ["NAME", "READY", "REASON", "REPLICAS", "MODEL", "SLO", "TUNING", "AGE"]
    assert header.split() == columns
    assert line.split()[:5] == ["demo", "True", "AllPodsReady", "1", "demo"]
    wide = namespace.kubectl("get", "llmdep", "demo", "-o=wide").splitlines()[1]
    assert images.ENGINE in wide
    assert f"http://demo.{namespace.name}.svc" in wide
    told = namespace.kubectl("describe", "llmdep", "demo")
    assert "AllPodsReady" in told
    assert "Events:" in told
    assert "PodsStarting" in told.partition("Events:")[2]
    told = namespace.kubectl("explain", "llmdep.spec.scheduling.maxNumBatchedTokens")
    assert "Token budget of one step" in told


def test_the_operator_runs_with_its_own_account_and_nothing_more(installed: Release) -> None:
    namespace = installed.namespace
    (pod,) = namespace.items("pods", OPERATOR_PODS)
    spec = pod["spec"]
    assert spec["serviceAccountName"] == "paceline"
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    who = f"--as=system:serviceaccount:{namespace.name}:paceline"
    for verb, what in (
        ("get", "secrets"),
        ("list", "secrets"),
        ("create", "pods"),
        ("update", "llmdeployments.paceline.dev"),
        ("get", "nodes"),
        ("update", "customresourcedefinitions.apiextensions.k8s.io"),
    ):
        answer = namespace.cluster.kubectl("auth", "can-i", verb, what, "-A", who, check=False)
        assert answer.splitlines()[-1] == "no", f"{verb} {what}: {answer}"
    with pytest.raises(CommandFailed, match="forbidden"):
        namespace.kubectl("get", "secrets", who)

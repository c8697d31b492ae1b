"""Fixtures of the journeys: a cluster, a namespace in it, an image that runs this project."""

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cluster import host_volumes, images, lifecycle, operator_process
from cluster.client import Cluster
from cluster.deployment import Deployment
from cluster.host_volumes import CHECKOUT
from cluster.layout import Layout
from cluster.namespace import Image, Namespace
from cluster.operator_process import OperatorProcess
from cluster.release import Release, values_of
from cluster.wait import until

CRD_FILE = CHECKOUT / "crds" / "llmdeployments.paceline.dev.yaml"
CRD_NAME = "llmdeployments.paceline.dev"
OUTCOME = pytest.StashKey[pytest.TestReport]()
FIGURES = pytest.StashKey[list[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember how a test went, so that `namespace` can show what was there when it failed.

    With PACELINE_REQUIRE=all a skipped test has failed: a complete run leaves nothing out.
    """
    report = yield
    if report.when == "call":
        item.stash[OUTCOME] = report
    if report.skipped and os.environ.get("PACELINE_REQUIRE") == "all":
        report.outcome = "failed"
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """What journeys measured, in plain lines."""
    if lines := config.stash.get(FIGURES, []):
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """`tell("sent 900, lost 0")` puts a line with the test's name into the summary of the run."""
    lines = request.config.stash.setdefault(FIGURES, [])
    name = request.node.name.removeprefix("test_").replace("_", " ")
    return lambda text: lines.append(f"{name}: {text}")


def pytest_report_header() -> str:
    """Say which cluster the journeys will change."""
    if config := os.environ.get("KUBECONFIG"):
        return f"cluster: the one of KUBECONFIG={config}"
    return (
        f"cluster: {os.environ.get('PACELINE_E2E_CLUSTER_NAME', 'two nodes started for this run')}"
    )


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One cluster for all journeys.

    KUBECONFIG names one that is somewhere; PACELINE_E2E_CLUSTER_NAME one that main.py has started
    here; otherwise two nodes are started now and taken away at the end.
    """
    if config := os.environ.get("KUBECONFIG"):
        yield Cluster(Path(config), None)
    elif name := os.environ.get("PACELINE_E2E_CLUSTER_NAME"):
        yield Cluster.here(Layout(name))
    else:
        layout = Layout(f"t{os.getpid()}")
        try:
            lifecycle.up(layout, nodes=2)
            yield Cluster.here(layout)
        finally:
            lifecycle.down(layout)


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace for one test, deleted afterwards; after a failure its content is shown first."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_"))
    own = Namespace(cluster, f"{words[:30].strip('-')}-{secrets.token_hex(3)}")
    own.create()
    try:
        yield own
        report = request.node.stash.get(OUTCOME, None)
        if report is not None and report.failed:
            sys.stderr.write(own.describe())
    finally:
        own.delete(wait=cluster.layout is None)


@pytest.fixture(scope="session")
def crd(cluster: Cluster) -> str:
    """The custom resource definition, applied and Established; its name."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD_FILE))
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{CRD_NAME}", "--timeout=60s")
    until(
        "the API server serves LLMDeployments",
        lambda: "llmdeployments" in cluster.kubectl("api-resources", "--api-group=paceline.dev"),
        timeout_s=30,
    )
    return CRD_NAME


@pytest.fixture(scope="session")
def model() -> Path:
    """The demo model's folder; downloaded and converted the first time."""
    command = [sys.executable, "-m", "paceline", "fetch", "demo"]
    path = ":".join(str(CHECKOUT / room) for room in ("crds", "kernels", "engine", "operator"))
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
    )
    return Path(done.stdout.strip())


@pytest.fixture
def image(cluster: Cluster, namespace: Namespace) -> Image:
    """An image with Python and this project, its volumes already claimed in the namespace."""
    found = _image(cluster)
    namespace.provide(found)
    return found


@pytest.fixture
def engine_image(cluster: Cluster, namespace: Namespace, request: pytest.FixtureRequest) -> Image:
    """The same with the demo model, as `engine_image.model` names it to `paceline serve`."""
    if cluster.layout is None:
        return _image(cluster)
    found = _image(cluster, request.getfixturevalue("model"))
    namespace.provide(found)
    return found


@pytest.fixture
def idle_operator(
    cluster: Cluster, crd: str, namespace: Namespace, engine_image: Image, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """The operator of this test's namespace, a process on this machine, not started yet."""
    assert crd
    image = engine_image
    if image.name == images.HOST:
        operator_process.load_engine_image(cluster)
        image = replace(image, name=images.ENGINE)
    process = OperatorProcess(cluster, namespace.name, tmp_path, image)
    if cluster.layout is not None:
        namespace.provide_cache()
        process.keep_in(host_volumes.CACHE_CLAIM)
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
def operator(idle_operator: OperatorProcess) -> OperatorProcess:
    """The same, started and ready."""
    idle_operator.start()
    idle_operator.wait_ready()
    return idle_operator


@pytest.fixture
def release(namespace: Namespace, image: Image, tmp_path: Path) -> Iterator[Release]:
    """No release yet; what tests install is taken away, the definition stays for other tests."""
    policies = namespace.cluster.kubectl("get", "validatingadmissionpolicies", "-o=name")
    if "paceline" in policies:
        pytest.skip("needs a cluster without an install of the chart: they take its definition")
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(values_of(image, namespace.name)), encoding="utf-8")
    made = Release(namespace, values)
    yield made
    for item in json.loads(made.helm("list", "-o=json")):
        made.helm("uninstall", item["name"], "--wait")


@pytest.fixture
def deployment(namespace: Namespace, operator: OperatorProcess) -> Deployment:
    """The LLMDeployment of this test, which that operator looks after. Not applied yet."""
    return Deployment(namespace, operator.tail, operator.settle)


def _image(cluster: Cluster, model: Path | None = None) -> Image:
    if name := os.environ.get("PACELINE_E2E_IMAGE"):
        return Image.whole(name)
    if cluster.layout is None:
        pytest.skip("a cluster elsewhere needs PACELINE_E2E_IMAGE: an engine image it can pull")
    return Image.thin(model)

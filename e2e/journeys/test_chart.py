"""The chart on a real API server with the real Helm: install, test, upgrade, uninstall, again."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import deployment
from cluster.client import Cluster, Document
from cluster.deployment import Deployment
from cluster.errors import CommandFailed
from cluster.host_volumes import CHECKOUT
from cluster.namespace import Image, Namespace
from cluster.release import CHART, OPERATOR_PODS, Release, values_of
from cluster.wait import until

pytestmark = pytest.mark.timeout(900)
OLDER_CHART = CHECKOUT / "e2e" / "fixtures" / "older-chart"
CRD = "llmdeployments.paceline.dev"
VERSION = "paceline.dev/schema-version"


def test_a_release_is_ready_and_passes_its_own_test(release: Release) -> None:
    release.install("one", "--take-ownership", "--set=operator.replicas=2")
    release.helm("test", "one")
    pods = release.namespace.items("pods", OPERATOR_PODS)
    assert len(pods) == 2
    names = [pod["metadata"]["name"] for pod in pods]

    def holder() -> str:
        lease = release.namespace.get("lease", "one-paceline")
        found: str = lease.get("spec", {}).get("holderIdentity") or ""
        return found

    until(
        "one of them has the Lease",
        lambda: any(name in holder() for name in names),
        timeout_s=60,
        seen=release.operator_log,
    )


def test_the_operator_has_no_right_to_a_secret(release: Release) -> None:
    release.install("one", "--take-ownership")
    namespace = release.namespace
    who = f"--as=system:serviceaccount:{namespace.name}:one-paceline"
    told = namespace.kubectl("auth", "can-i", "--list", who)
    assert "deployments.apps" in told
    assert "secrets" not in told


def test_the_master_key_and_the_newest_schema_outlive_everything(
    release: Release, cluster: Cluster
) -> None:
    release.install("one", "--take-ownership")
    namespace = release.namespace
    key = namespace.get("secret", "one-paceline-master-key")["data"]
    namespace.apply(
        {
            "apiVersion": "paceline.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": "demo", "labels": {"paceline.dev/operator": "nobody"}},
            "spec": {"model": {"uri": "demo"}},
        }
    )

    cluster.kubectl("annotate", "crd", CRD, "--overwrite", f"{VERSION}=99")
    try:
        release.install("one", "--set=operator.workers=3")
        assert namespace.get("secret", "one-paceline-master-key")["data"] == key
        assert cluster.get("crd", CRD)["metadata"]["annotations"][VERSION] == "99"

        older = ("annotate", "crd", CRD, "--overwrite", f"{VERSION}=1", "--dry-run=server")
        until(
            "an older version is refused",
            lambda: "newer schema of LLMDeployment" in cluster.kubectl(*older, check=False),
            timeout_s=60,  # a policy is in force some seconds after it was made
        )
        with pytest.raises(CommandFailed, match="newer schema of LLMDeployment"):
            cluster.kubectl("annotate", "crd", CRD, "--overwrite", f"{VERSION}=1")

        release.helm("uninstall", "one", "--wait")
        assert namespace.get("secret", "one-paceline-master-key")["data"] == key
        assert namespace.get("llmdep", "demo")["spec"]["model"] == {"uri": "demo"}
    finally:
        release.helm("uninstall", "one", "--wait", "--ignore-not-found")
        # The server enforces a policy that is deleted for a moment more.
        annotate = ("annotate", "crd", CRD, "--overwrite", f"{VERSION}=1")
        until(
            "an older version is taken",
            lambda: cluster.kubectl(*annotate, check=False).rstrip().endswith("annotated"),
            timeout_s=60,
        )

    release.install("another", "--take-ownership")
    assert (
        cluster.get("crd", CRD)["metadata"]["annotations"]["meta.helm.sh/release-name"] == "another"
    )
    assert namespace.get("llmdep", "demo")["metadata"]["name"] == "demo"


def test_an_upgrade_brings_the_new_schema_and_keeps_what_is_there(
    release: Release, cluster: Cluster
) -> None:
    namespace = release.namespace
    if cluster.get("crd", CRD):
        others = ("get", "llmdeployments", "-A", "-o=name")
        until(
            "nobody's LLMDeployments are there: their definition is about to be taken away",
            lambda: not cluster.kubectl(*others).strip(),
            timeout_s=180,  # those of the tests before may still be on their way out
            seen=lambda: cluster.kubectl(*others, check=False),
        )
        cluster.kubectl("delete", "crd", CRD)
    release.helm("install", "one", str(OLDER_CHART))
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=60s")
    until("the older schema is served", lambda: applied(namespace), timeout_s=60)
    assert "maxModelLen" not in namespace.get("llmdep", "demo")["spec"]

    release.install("one")
    assert cluster.get("crd", CRD)["metadata"]["annotations"][VERSION] == "1"
    key = namespace.get("secret", "one-paceline-master-key")["data"]["current"]
    assert base64.b64decode(key).startswith(b"older-chart-key")
    until(
        "the newer schema is served",
        lambda: applied(namespace).get("maxModelLen") == 512,
        timeout_s=60,
    )


def applied(namespace: Namespace) -> Document:
    """The spec of an LLMDeployment as the server takes it: fields it does not know are pruned.

    Server-side apply would refuse such a field instead.
    """
    document = manifest({"model": {"uri": "demo"}, "maxModelLen": 512})
    namespace.kubectl("apply", "--validate=ignore", "-f", "-", stdin=json.dumps(document))
    spec: Document = namespace.get("llmdep", "demo")["spec"]
    return spec


def test_a_cluster_says_what_it_allows(release: Release) -> None:
    release.install(
        "one",
        "--take-ownership",
        "--set=admissionPolicy.allowedModels={hf://Qwen/,demo}",
        "--set=admissionPolicy.allowedImages={registry.example/}",
        "--set=admissionPolicy.maxGpusPerReplica=4",
    )
    namespace = release.namespace
    for spec, told in (
        ({"model": {"uri": "hf://other/x"}}, "must begin with one of: hf://Qwen/, demo"),
        ({"model": {"uri": "demo"}, "image": "docker.io/x"}, "spec.image must begin with"),
        ({"model": {"uri": "demo"}, "resources": {"gpus": 5}}, "must be at most 4"),
    ):
        until_refused(namespace, told, manifest(spec))
    namespace.apply(manifest({"model": {"uri": "demo"}}))
    other = manifest({"model": {"uri": "demo"}})
    other["metadata"]["labels"]["paceline.dev/operator"] = "other"
    until_refused(namespace, "paceline.dev/operator must stay as it is", other)


def until_refused(namespace: Namespace, told: str, document: Document) -> None:
    """Wait until the server says that against a document: a policy is in force some seconds late.

    Nothing is stored, whatever it says.
    """
    words = ("apply", "--server-side", "--dry-run=server", f"--namespace={namespace.name}", "-f-")
    text = json.dumps(document)
    until(
        f"the server says: {told}",
        lambda: told in namespace.cluster.kubectl(*words, check=False, stdin=text),
        timeout_s=60,
        seen=lambda: namespace.cluster.kubectl(*words, check=False, stdin=text),
    )


def manifest(spec: Document) -> Document:
    return {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "demo", "labels": {"paceline.dev/operator": "nobody"}},
        "spec": spec,
    }


@pytest.fixture
def neighbour(release: Release, image: Image, tmp_path: Path) -> Iterator[Release]:
    """Another namespace for a second release, which may have nothing that is cluster-scoped."""
    namespace = Namespace(release.namespace.cluster, f"{release.namespace.name}-2")
    namespace.create()
    namespace.provide(image)
    values = tmp_path / "neighbour.yaml"
    own = {"crds": {"enabled": False}, "admissionPolicy": {"enabled": False}}
    text = yaml.safe_dump(values_of(image, namespace.name) | own)
    values.write_text(text, encoding="utf-8")
    made = Release(namespace, values)
    try:
        yield made
        made.helm("uninstall", "two", "--wait", "--ignore-not-found")
    finally:
        namespace.delete(wait=False)


def test_two_namespaced_releases_look_after_their_own(release: Release, neighbour: Release) -> None:
    release.install("one", "--take-ownership")
    neighbour.install("two")
    assert "kind: Cluster" not in neighbour.helm("get", "manifest", "two")
    assert "kind: CustomResourceDefinition" not in neighbour.helm("get", "manifest", "two")
    for each in (release, neighbour):
        document = deployment.manifest(replicas=0)
        document["metadata"]["labels"] = {"paceline.dev/operator": each.namespace.name}
        each.namespace.apply(document)
    for each in (release, neighbour):
        Deployment(each.namespace, each.operator_log).wait_ready()
        children = each.namespace.items("deployments,services", f"--selector={deployment.LABEL}")
        assert len(children) == 2
        for item in children:
            assert item["metadata"]["labels"]["paceline.dev/operator"] == each.namespace.name
        assert "is forbidden: User" not in each.operator_log()
    release.helm("uninstall", "one", "--wait")
    neighbour.namespace.kubectl("delete", "llmdep", "demo")


MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "cluster with two replicas": {"operator": {"replicas": 2}},
    "dashboards": {"dashboards": {"enabled": True}},
    "policies": {"admissionPolicy": {"allowedModels": ["hf://"], "maxGpusPerReplica": 8}},
    "egress": {"networkPolicy": {"egress": [{"ports": [{"port": 443}]}]}},
}


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_the_server_takes_what_the_chart_renders(
    release: Release, cluster: Cluster, values: Document, tmp_path: Path
) -> None:
    file = tmp_path / "more.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    words = ["template", "one", str(CHART), "--values", str(file), "--no-hooks"]
    rendered = release.helm(*words)
    cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=rendered
    )

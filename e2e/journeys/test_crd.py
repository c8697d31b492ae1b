"""A real API server takes the definition of LLMDeployment, and every rule in it speaks up."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.client import Cluster, Document
from cluster.errors import CommandFailed
from cluster.host_volumes import CHECKOUT
from cluster.namespace import Namespace

REFUSED: list[dict[str, Any]] = yaml.safe_load(
    (CHECKOUT / "tests" / "paceline_crds" / "refused.yaml").read_text(encoding="utf-8")
)
EXAMPLES = sorted((CHECKOUT / "examples").glob("*.yaml"))
COLUMNS = ["NAME", "READY", "REASON", "REPLICAS", "MODEL", "SLO", "TUNING", "AGE"]
WIDE = ["IMAGE", "KV", "ENDPOINT"]

pytestmark = pytest.mark.usefixtures("crd")


def document(spec: dict[str, Any] | None = None, name: str = "demo") -> Document:
    return {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "demo"}, **(spec or {})},
    }


def test_each_bad_manifest_is_refused_with_its_message(cluster: Cluster) -> None:
    named = {case.get("name", f"case-{number}"): case for number, case in enumerate(REFUSED)}
    told = cluster.refusals([document(case.get("spec"), name) for name, case in named.items()])
    wrong = {
        name: (case, told.get(name, "accepted"))
        for name, case in named.items()
        if case["message"] not in told.get(name, "")
    }
    assert wrong == {}
    assert len(told) == len(REFUSED) > 40


def test_an_unknown_field_is_told(namespace: Namespace) -> None:
    with pytest.raises(CommandFailed, match=r"unknown field .*modle"):
        namespace.apply(document({"modle": {"uri": "demo"}}))


def test_a_minimal_manifest_reads_back_without_any_tunable_setting(namespace: Namespace) -> None:
    namespace.apply(document())
    spec = namespace.get("llmdeployment", "demo")["spec"]
    assert spec == {"model": {"uri": "demo"}, "replicas": 1}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_applies_and_then_differs_in_nothing(namespace: Namespace, path: Path) -> None:
    namespace.kubectl("apply", "--server-side", "-f", str(path))
    namespace.kubectl("diff", "--server-side", "-f", str(path))  # fails if there is a difference
    namespace.kubectl("delete", "-f", str(path))
    assert namespace.items("llmdeployments") == []


def test_scale_writes_the_replicas_of_spec(namespace: Namespace) -> None:
    namespace.apply(document())
    namespace.kubectl("scale", "llmdeployment", "demo", "--replicas=3")
    assert namespace.get("llmdep", "demo")["spec"]["replicas"] == 3
    status = '{"status": {"replicas": 2, "selector": "paceline.dev/llmdeployment=demo"}}'
    namespace.kubectl(
        "patch", "llmdep", "demo", "--subresource=status", "--type=merge", "-p", status
    )
    path = f"/apis/paceline.dev/v1alpha1/namespaces/{namespace.name}/llmdeployments/demo/scale"
    scale = yaml.safe_load(namespace.cluster.kubectl("get", "--raw", path))
    assert scale["spec"]["replicas"] == 3
    assert scale["status"] == {"replicas": 2, "selector": "paceline.dev/llmdeployment=demo"}


def test_a_status_is_written_beside_spec_and_never_with_it(namespace: Namespace) -> None:
    namespace.apply({**document(), "status": {"replicas": 7}})
    assert "status" not in namespace.get("llmdeployment", "demo")


def test_the_columns_are_those_that_an_operator_looks_for(namespace: Namespace) -> None:
    namespace.apply(document())
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "AllReady",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = json.dumps({"status": {"replicas": 1, "conditions": [condition]}})
    namespace.kubectl("patch", "llmdep/demo", "--subresource=status", "--type=merge", "-p", status)
    lines = namespace.kubectl("get", "llmdep").splitlines()
    assert lines[0].split() == COLUMNS
    assert lines[1].split()[:5] == ["demo", "True", "AllReady", "1", "demo"]
    wide = namespace.kubectl("get", "llmdep", "-o=wide").splitlines()
    assert wide[0].split() == [*COLUMNS, *WIDE]


def test_explain_tells_what_a_field_is_for(cluster: Cluster) -> None:
    told = cluster.kubectl("explain", "llmdeployment.spec.scheduling.maxNumSeqs")
    assert "FIELD: maxNumSeqs <integer>" in told
    description = told.partition("DESCRIPTION:")[2].strip()
    assert len(description) > 20


def test_every_field_of_spec_is_explained(cluster: Cluster) -> None:
    served = cluster.get("crd", "llmdeployments.paceline.dev")
    version = served["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]

    def silent(path: str, node: Document) -> list[str]:
        inner = node.get("properties", {}) | node.get("items", {}).get("properties", {})
        bare = [f"{path}.{name}" for name, child in inner.items() if not child.get("description")]
        return bare + [
            field for name, child in inner.items() for field in silent(f"{path}.{name}", child)
        ]

    assert silent("spec", version["spec"]) == []

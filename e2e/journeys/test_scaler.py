"""The cluster's own HPA scales an LLMDeployment through its scale subresource."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import certificates, external_metrics
from cluster.client import Document
from cluster.deployment import Deployment
from cluster.layout import GATEWAY
from cluster.namespace import Namespace
from cluster.wait import until

METRIC = "requests-waiting"
PORT = 16443
SCALER: Document = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "demo"},
    "spec": {
        "scaleTargetRef": {
            "apiVersion": "paceline.dev/v1alpha1",
            "kind": "LLMDeployment",
            "name": "demo",
        },
        "minReplicas": 1,
        "maxReplicas": 2,
        "metrics": [
            {
                "type": "External",
                "external": {
                    "metric": {"name": METRIC},
                    "target": {"type": "AverageValue", "averageValue": "5"},
                },
            }
        ],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    },
}


@pytest.fixture
def waiting(namespace: Namespace, tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """Sets how many requests wait, as the HPA is told."""
    cluster = namespace.cluster
    if cluster.layout is None:
        pytest.skip("serves external metrics itself, in the network of a cluster of this machine")
    values = tmp_path / "values.json"

    def set_to(number: int) -> None:
        new = values.with_suffix(".new")
        new.write_text(json.dumps({METRIC: number}))
        new.rename(values)  # it may be read at any moment

    set_to(0)
    pki = certificates.folder(cluster.layout)
    pair = [str(pki / "front-proxy.crt"), str(pki / "front-proxy.key")]
    command = [sys.executable, external_metrics.__file__, GATEWAY, str(PORT), *pair, str(values)]
    with cluster.process(command, tmp_path / "metrics.log"):
        cluster.apply(*external_metrics.manifests(namespace.name, GATEWAY, PORT))
        name = f"{external_metrics.VERSION}.{external_metrics.GROUP}"
        try:
            available = ("wait", "--for=condition=Available", f"apiservice/{name}")
            cluster.kubectl(*available, "--timeout=60s")
            yield set_to
        finally:
            cluster.kubectl("delete", "apiservice", name)


@pytest.mark.timeout(600)
def test_an_hpa_scales_up_and_down_and_the_operator_writes_no_spec(
    namespace: Namespace, deployment: Deployment, waiting: Callable[[int], None]
) -> None:
    deployment.apply()
    deployment.wait_ready()
    namespace.apply(SCALER)
    until(
        "the HPA reads the metric and counts one pod",
        lambda: namespace.get("hpa", "demo").get("status", {}).get("currentReplicas") == 1,
        timeout_s=60,
        seen=lambda: namespace.kubectl("describe", "hpa", "demo"),
    )
    waiting(9)
    until("two are wanted", lambda: deployment.get()["spec"]["replicas"] == 2, timeout_s=60)
    assert deployment.wait_ready()["status"]["readyReplicas"] == 2

    waiting(2)
    until("one is wanted", lambda: deployment.get()["spec"]["replicas"] == 1, timeout_s=60)
    until("one pod is left", lambda: len(deployment.pods()) == 1, timeout_s=120)
    managed = deployment.get("--show-managed-fields")["metadata"]["managedFields"]
    ours = [item["fieldsV1"] for item in managed if item["manager"] == "paceline-operator"]
    assert ours
    assert not any("f:spec" in fields for fields in ours)

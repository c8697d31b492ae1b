"""The examples of scalers: valid, about metrics that exist, of a kind that no surge deceives."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from paceline_crds.llmdeployment import API_VERSION, KIND
from paceline_crds.metrics import METRICS
from paceline_operator.render import monitoring, names
from paceline_operator.resources.parse import Parsed, parse

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "autoscaling"
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.yaml"))}
KUBERNETES = "1.34"


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(TEXTS[name])
    return found


@pytest.mark.slow  # schemas of Kubernetes are large
def test_the_hpa_is_valid() -> None:
    kubernetes_validate.validate(read("hpa"), KUBERNETES, strict=True)


@pytest.mark.parametrize("name", TEXTS)
def test_a_scaler_targets_the_llmdeployment_itself(name: str) -> None:
    target = read(name)["spec"]["scaleTargetRef"]
    assert (target["apiVersion"], target["kind"]) == (API_VERSION, KIND)


def test_metrics_are_sums_over_a_target() -> None:
    (metric,) = read("hpa")["spec"]["metrics"]
    assert metric["type"] == "External"
    assert metric["external"]["target"]["type"] == "AverageValue"
    (trigger,) = read("keda")["spec"]["triggers"]
    assert trigger["metricType"] == "AverageValue"


@pytest.mark.parametrize("name", TEXTS)
def test_they_ask_for_metrics_that_engines_have_under_labels_that_pods_get(name: str) -> None:
    asked = set(re.findall(r"vllm:\w+", TEXTS[name]))
    assert asked
    assert asked <= set(METRICS)
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "chat", "namespace": "a", "uid": "u", "generation": 1},
        "spec": {"model": {"uri": "demo"}},
    }
    parsed = parse(document)
    assert isinstance(parsed, Parsed)
    monitor = monitoring.pod_monitor(parsed.identity, parsed.deployment.spec, None)
    assert monitor is not None
    assert names.DEPLOYMENT_LABEL in monitor["spec"]["podTargetLabels"]
    assert re.sub(r"\W", "_", names.DEPLOYMENT_LABEL) in TEXTS[name]

"""The chart as Helm renders it, in this process: no cluster and no helm program is needed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "paceline"
RELEASE, NAMESPACE = "pl", "serving"
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the definition is long
Document = dict[str, Any]
Render = Callable[..., list[Document]]


@pytest.fixture(scope="session")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def render(chart: helm_python.Chart) -> Render:
    """`render(values, name=..., namespace=...)`: the objects of a release, tests of it included."""

    def objects(
        values: Document | None = None, *, name: str = RELEASE, namespace: str = NAMESPACE
    ) -> list[Document]:
        chart.validate_schema(values or {})
        made = chart.render(values or {}, name=name, namespace=namespace)
        texts = [text for path, text in made.items() if not path.endswith("NOTES.txt")]
        return [item for text in texts for item in yaml.load_all(text, Loader) if item]

    return objects


@pytest.fixture(scope="session")
def everything() -> Document:
    """Values that turn all of it on."""
    return {
        "operator": {
            "replicas": 2,
            "imagePullSecrets": [{"name": "pull"}],
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": {"pool": "cpu"},
            "tolerations": [{"key": "cpu", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "volumes": [{"name": "extra", "emptyDir": {}}],
            "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        },
        "commonLabels": {"team": "platform"},
        "admissionPolicy": {
            "allowedImages": ["registry.example/"],
            "allowedModels": ["hf://Qwen/", "pvc://"],
            "maxGpusPerReplica": 8,
        },
        "engine": {"podDefaults": {"nodeSelector": {"pool": "gpu"}}},
        "prometheus": {
            "url": "https://prometheus.example",
            "bearerTokenSecret": {"name": "prometheus"},
            "caConfigMap": {"name": "ca"},
        },
        "metrics": {"monitor": "ServiceMonitor", "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True, "namespace": "grafana"},
        "networkPolicy": {
            "metricsFrom": [{"namespaceSelector": {}}],
            "egress": [{"ports": [{"port": 443}]}],
        },
    }

"""Names that YAML reads as something else: each is a valid name, and stays a text."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline_operator.resources import config

Document = dict[str, Any]
Render = Callable[..., list[Document]]
ODD = ("2", "1.5", "0x1f", "on", "no", "null", "true")

pytestmark = pytest.mark.slow  # every template, many times


def kinds_of_values(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Where each value of a document lies, and what it is."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from kinds_of_values(item, f"{path}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from kinds_of_values(item, f"{path}[{number}]")
    else:
        yield path, type(value).__name__


def shape(documents: list[Document]) -> list[tuple[str, str]]:
    kept = [item for item in documents if item["kind"] != "CustomResourceDefinition"]
    kept.sort(key=lambda item: (item["kind"], len(str(item))))
    return sorted({found for item in kept for found in kinds_of_values(item, item["kind"])})


def values(name: str) -> Document:
    return {
        "operator": {"replicas": 2, "priorityClassName": name},
        "serviceAccount": {"name": name},
        "masterKey": {"existingSecret": name},
        "prometheus": {
            "url": "http://p",
            "bearerTokenSecret": {"name": name, "key": name},
            "caConfigMap": {"name": name, "key": name},
        },
        "metrics": {"monitor": "PodMonitor"},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True, "namespace": name},
        "scope": "Namespaced",
        "namespaces": [name],
    }


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_name_of_release_namespace_and_references_stays_a_text(
    render: Render, odd: str
) -> None:
    if "." in odd:
        given = values("plain")
        usual, found = render(given), render(given, name=odd)
    else:
        usual, found = render(values("plain")), render(values(odd), name=odd, namespace=odd)
    assert shape(found) == shape(usual)
    assert operator_config(found).operator_labels["app.kubernetes.io/instance"] == odd


@pytest.mark.parametrize("odd", ["on", "no", "null", "true"])
def test_an_odd_name_for_everything_stays_a_text(render: Render, odd: str) -> None:
    found = render({"fullnameOverride": odd})
    assert shape(found) == shape(render({"fullnameOverride": "plain"}))
    assert operator_config(found).lease.name == odd


def operator_config(documents: list[Document]) -> config.OperatorConfig:
    maps = [item for item in documents if "config.yaml" in (item.get("data") or {})]
    return config.parse(maps[0]["data"]["config.yaml"])

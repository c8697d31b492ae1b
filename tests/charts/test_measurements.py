"""Values about measuring and tuning: what the operator is told and may reach, who scrapes it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import helm_python
import pytest
import yaml

from paceline_operator.render import names
from paceline_operator.resources import config
from paceline_operator.resources.config import OperatorConfig, PrometheusConfig, TuningConfig

Document = dict[str, Any]
Render = Callable[..., list[Document]]
URL = "https://prometheus.monitoring.svc:9090"
README = Path(__file__).resolve().parents[2] / "charts" / "paceline" / "README.md"
SERVICE_ACCOUNT_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"


def one(documents: list[Document], kind: str) -> Document:
    (found,) = [item for item in documents if item["kind"] == kind]
    return found


def read(documents: list[Document]) -> OperatorConfig:
    (text,) = [
        item["data"]["config.yaml"]
        for item in documents
        if item["kind"] == "ConfigMap" and "config.yaml" in item["data"]
    ]
    return config.parse(text)


PROMETHEUS: dict[str, tuple[Document, PrometheusConfig]] = {
    "none": ({}, PrometheusConfig()),
    "plain": ({"url": URL}, PrometheusConfig(url=URL)),
    "a Secret's token": (
        {"url": URL, "bearerTokenSecret": {"name": "token", "key": "t"}},
        PrometheusConfig(url=URL, bearer_token_file="/etc/paceline/prometheus-token/token"),
    ),
    "the account's token and an own CA": (
        {
            "url": URL,
            "useServiceAccountToken": True,
            "caConfigMap": {"name": "ca", "key": "bundle.pem"},
        },
        PrometheusConfig(
            url=URL,
            bearer_token_file=SERVICE_ACCOUNT_TOKEN,
            ca_file="/etc/paceline/prometheus-ca/ca.crt",
        ),
    ),
}


@pytest.mark.parametrize(("values", "expected"), PROMETHEUS.values(), ids=list(PROMETHEUS.keys()))
def test_the_operator_asks_the_prometheus_of_the_values(
    render: Render, values: Document, expected: PrometheusConfig
) -> None:
    assert read(render({"prometheus": values})).prometheus == expected


def test_a_key_of_any_name_is_the_file_that_the_operator_reads(render: Render) -> None:
    values = {
        "url": URL,
        "bearerTokenSecret": {"name": "token", "key": "t"},
        "caConfigMap": {"name": "ca", "key": "bundle.pem"},
    }
    documents = render({"prometheus": values})
    volumes = one(documents, "Deployment")["spec"]["template"]["spec"]["volumes"]
    by_name = {volume["name"]: volume for volume in volumes}
    assert by_name["prometheus-token"]["secret"] == {
        "secretName": "token",
        "defaultMode": 0o440,
        "items": [{"key": "t", "path": "token"}],
    }
    assert by_name["prometheus-ca"]["configMap"] == {
        "name": "ca",
        "items": [{"key": "bundle.pem", "path": "ca.crt"}],
    }


def test_two_tokens_for_one_prometheus_are_refused(chart: helm_python.Chart) -> None:
    values = {"useServiceAccountToken": True, "bearerTokenSecret": {"name": "token"}}
    with pytest.raises(helm_python.HelmError):
        chart.validate_schema({"prometheus": values})


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://prometheus", "http://a b"])
def test_an_address_that_is_none_is_refused(chart: helm_python.Chart, url: str) -> None:
    with pytest.raises(helm_python.HelmError):
        chart.validate_schema({"prometheus": {"url": url}})


def test_the_operator_tunes_within_the_limits_of_the_values(render: Render) -> None:
    assert read(render()).tuning == TuningConfig()
    documents = render({"tuning": {"frozen": True, "maxConcurrent": 2}})
    assert read(documents).tuning == TuningConfig(frozen=True, max_concurrent=2)


@pytest.mark.parametrize("tuning", [{"maxConcurrent": 0}, {"frozen": "yes"}, {"other": 1}])
def test_a_wrong_limit_is_refused(chart: helm_python.Chart, tuning: Document) -> None:
    with pytest.raises(helm_python.HelmError):
        chart.validate_schema({"tuning": tuning})


def test_by_default_anybody_may_scrape_and_nothing_is_out_of_reach(render: Render) -> None:
    policy = one(render({"prometheus": {"url": URL}}), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress"], "egress to Prometheus is not limited"
    assert policy["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}]}]


def test_only_the_named_peers_and_the_charts_own_test_may_scrape(render: Render) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    documents = render({"networkPolicy": {"metricsFrom": [peer]}})
    (rule,) = one(documents, "NetworkPolicy")["spec"]["ingress"]
    first, test = rule["from"]
    assert first == peer
    labels = one(documents, "Pod")["metadata"]["labels"]
    assert test["podSelector"]["matchLabels"].items() <= labels.items()
    without = render({"networkPolicy": {"metricsFrom": [peer]}, "tests": {"enabled": False}})
    assert one(without, "NetworkPolicy")["spec"]["ingress"][0]["from"] == [peer]


def test_the_readmes_egress_reaches_all_that_the_operator_needs(render: Render) -> None:
    (text,) = re.findall(
        r"```yaml\n(# Egress.*?)```", README.read_text(encoding="utf-8"), re.DOTALL
    )
    values: Document = yaml.safe_load(text)
    policy = one(render(values), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    prometheus = urlsplit(values["prometheus"]["url"]).port
    assert {53, 443, 6443, names.ADMIN_PORT, names.HTTP_PORT, prometheus} <= ports

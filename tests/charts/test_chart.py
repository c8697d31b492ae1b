"""The chart: what it renders is valid, has few rights, and refuses what it does not know."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from paceline_operator.decide import children
from paceline_operator.render.inputs import POD_DEFAULT_KEYS
from paceline_operator.resources import config
from paceline_operator.shell import kinds

Document = dict[str, Any]
Render = Callable[..., list[Document]]

pytestmark = pytest.mark.slow  # schemas of Kubernetes are large

KUBERNETES = "1.34"
LINT_INFO = 1
FOREIGN_GROUPS = ("monitoring.coreos.com/", "apiextensions.k8s.io/")
CLUSTER_KINDS = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
NAMESPACED: Document = {
    "scope": "Namespaced",
    "crds": {"enabled": False},
    "admissionPolicy": {"enabled": False},
}
MATRIX: dict[str, Document] = {
    "defaults": {},
    "namespaced": NAMESPACED,
    "two namespaces": {**NAMESPACED, "namespaces": ["models", "more-models"]},
    "second install": {**NAMESPACED, "instance": "blue", "fullnameOverride": "blue"},
    "pod monitor": {"metrics": {"monitor": "PodMonitor"}, "prometheusRule": {"enabled": True}},
    "own key": {"masterKey": {"existingSecret": "key"}},
    "no rbac": {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "own"}},
    "digest": {"operator": {"image": {"digest": "sha256:" + "0" * 64}}},
    "service account token": {
        "prometheus": {"url": "http://prometheus:9090", "useServiceAccountToken": True}
    },
    "bare": {
        "networkPolicy": {"enabled": False},
        "tests": {"enabled": False},
        "rbac": {"aggregate": False},
        "admissionPolicy": {"enabled": False},
    },
}
EACH = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())


def one(documents: list[Document], kind: str, ending: str = "") -> Document:
    found = [
        item
        for item in documents
        if item["kind"] == kind and item["metadata"]["name"].endswith(ending)
    ]
    assert len(found) == 1, f"{len(found)} {kind} *{ending}"
    return found[0]


def operator_config(documents: list[Document]) -> config.OperatorConfig:
    return config.parse(one(documents, "ConfigMap", "-paceline")["data"]["config.yaml"])


@cache
def assert_fits_its_schema(text: str) -> None:
    kubernetes_validate.validate(json.loads(text), KUBERNETES, strict=True)


def assert_valid(documents: list[Document]) -> None:
    for item in documents:
        if not item["apiVersion"].startswith(FOREIGN_GROUPS):
            assert_fits_its_schema(json.dumps(item, sort_keys=True))
    keys = [
        (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
        for item in documents
    ]
    assert len(keys) == len(set(keys))
    assert all(len(name) <= (63 if namespace else 253) for _, namespace, name in keys)


@EACH
def test_what_is_rendered_is_valid(render: Render, values: Document) -> None:
    assert_valid(render(values))


def test_all_of_it_at_once_is_valid(render: Render, everything: Document) -> None:
    documents = render(everything)
    assert_valid(documents)
    kinds = {item["kind"] for item in documents}
    assert {"PrometheusRule", "ServiceMonitor", "PodDisruptionBudget", "Pod"} <= kinds


def test_long_names_stay_valid(render: Render) -> None:
    assert_valid(render(name="r" * 53, namespace="n" * 63))


def test_lint_finds_nothing() -> None:
    root = Path(__file__).resolve().parents[2] / "charts" / "paceline"
    found = helm_python.lint(root, namespace="serving")
    warnings = [item for item in found["messages"] if item["severity"] > LINT_INFO]
    assert (warnings, found["errors"]) == ([], [])


@EACH
def test_no_rule_names_secrets_or_everything(render: Render, values: Document) -> None:
    rules = [
        rule
        for item in render(values)
        if item["kind"] in {"Role", "ClusterRole"}
        for rule in item["rules"]
    ]
    for rule in rules:
        assert "secrets" not in rule["resources"]
        assert "*" not in [*rule["resources"], *rule["verbs"], *rule["apiGroups"]]
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def resources_with(rules: list[Document], *verbs: str) -> set[str]:
    return {
        resource
        for rule in rules
        if set(verbs) <= set(rule["verbs"])
        for resource in rule["resources"]
    }


def test_the_rights_reach_every_kind_of_child(render: Render) -> None:
    rules = one(render(), "ClusterRole", "serving-pl-paceline")["rules"]
    writable = resources_with(rules, "get", "list", "watch", "create", "patch")
    assert {kind.plural for kind in kinds.CHILDREN.values()} == writable
    assert {kind.plural for kind in kinds.WATCHED} | {"events"} == resources_with(rules, "list")


def test_only_what_no_owner_takes_away_may_be_deleted(render: Render) -> None:
    rules = one(render(), "ClusterRole", "serving-pl-paceline")["rules"]
    deleted = {kinds.CHILDREN[kind].plural for kind in children.DELETED_KINDS}
    assert deleted | {"pods"} == resources_with(rules, "delete")


@pytest.mark.parametrize("namespaces", [[], ["models", "more-models"]])
def test_a_namespaced_install_has_nothing_of_the_whole_cluster(
    render: Render, namespaces: list[str]
) -> None:
    documents = render({**NAMESPACED, "namespaces": namespaces})
    assert not CLUSTER_KINDS & {item["kind"] for item in documents}
    assert all(item["metadata"]["namespace"] for item in documents)
    roles = {
        item["metadata"]["namespace"]
        for item in documents
        if item["kind"] == "RoleBinding" and not item["metadata"]["name"].endswith("-lease")
    }
    watched = set(operator_config(documents).watch_namespaces)
    assert roles == watched == set(namespaces or ["serving"])


def test_notes_name_a_namespace_and_a_label_that_this_install_looks_at(
    chart: helm_python.Chart,
) -> None:
    values = {**NAMESPACED, "namespaces": ["models", "more-models"], "instance": "2"}
    made = chart.render(values, name="pl", namespace="serving")
    (notes,) = [text for path, text in made.items() if path.endswith("NOTES.txt")]
    manifest = notes.partition("<<'END'\n")[2].partition("END\n")[0]
    metadata = yaml.safe_load(manifest)["metadata"]
    assert metadata["namespace"] == "models"
    assert metadata["labels"] == {"paceline.dev/operator": "2"}
    assert "kubectl wait -n models " in notes


def test_two_installs_share_no_name(render: Render) -> None:
    def names(documents: list[Document]) -> set[tuple[str, str, str]]:
        return {
            (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])
            for item in documents
        }

    first = render({}, name="one", namespace="a")
    second = render(
        {"crds": {"enabled": False}, "admissionPolicy": {"enabled": False}},
        name="one",
        namespace="b",
    )
    assert not names(first) & names(second)


def pods(documents: list[Document]) -> list[Document]:
    return [
        item["spec"]["template"]["spec"] if item["kind"] == "Deployment" else item["spec"]
        for item in documents
        if item["kind"] in {"Deployment", "Pod"}
    ]


def test_pods_pass_the_restricted_profile(render: Render) -> None:
    found = pods(render())
    assert len(found) == 2
    for spec in found:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        for volume in spec.get("volumes", []):
            assert {"configMap", "secret", "emptyDir"} & volume.keys()


def test_the_operator_is_given_time_before_liveness_counts(render: Render) -> None:
    container = one(render(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300
    assert {"livenessProbe", "readinessProbe"} <= container.keys()


def test_the_operator_reads_what_the_values_say(render: Render, everything: Document) -> None:
    read = operator_config(render({**everything, "instance": "blue"}))
    assert (read.instance, read.namespace, read.watch_namespaces) == ("blue", "serving", ())
    assert read.engine.image.startswith("ghcr.io/paceline/paceline-engine:")
    assert read.engine.pod_defaults == {"nodeSelector": {"pool": "gpu"}}
    assert read.prometheus.url == "https://prometheus.example"
    assert read.prometheus.bearer_token_file == "/etc/paceline/prometheus-token/token"
    assert read.prometheus.ca_file == "/etc/paceline/prometheus-ca/ca.crt"
    assert read.lease.name == "pl-paceline"


def test_an_instance_of_digits_stays_a_text(render: Render) -> None:
    assert operator_config(render({"instance": "2"})).instance == "2"


def test_every_file_that_the_operator_is_told_of_is_mounted(
    render: Render, everything: Document
) -> None:
    documents = render(everything)
    read = operator_config(documents)
    mounts = [mount["mountPath"] for mount in pods(documents)[0]["containers"][0]["volumeMounts"]]
    for path in (
        read.admin_tokens.master_key_file,
        read.prometheus.bearer_token_file,
        read.prometheus.ca_file,
    ):
        assert any(path.startswith(f"{mount}/") for mount in mounts), path


def test_the_network_policy_selects_the_pods_that_engines_let_in(render: Render) -> None:
    documents = render()
    labels = one(documents, "Deployment")["spec"]["template"]["metadata"]["labels"]
    policy = one(documents, "NetworkPolicy")
    for wanted in (
        operator_config(documents).operator_labels,
        policy["spec"]["podSelector"]["matchLabels"],
        one(documents, "Service")["spec"]["selector"],
    ):
        assert wanted.items() <= labels.items()


def test_pod_defaults_have_the_keys_that_the_operator_knows() -> None:
    schema = json.loads(
        (Path(__file__).resolve().parents[2] / "charts/paceline/values.schema.json").read_text()
    )
    known = schema["properties"]["engine"]["properties"]["podDefaults"]["properties"]
    assert set(known) == set(POD_DEFAULT_KEYS)


def test_a_changed_value_of_the_configuration_replaces_the_operators_pod(render: Render) -> None:
    def digest(values: Document) -> str:
        template = one(render(values), "Deployment")["spec"]["template"]
        found: str = template["metadata"]["annotations"]["paceline.dev/config-digest"]
        return found

    assert digest({}) == digest({})
    assert digest({}) != digest({"operator": {"workers": 3}})


def test_a_key_is_made_unless_one_is_there(render: Render) -> None:
    secret = one(render(), "Secret")
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert len(secret["data"]["current"]) == 64
    documents = render({"masterKey": {"existingSecret": "key"}})
    assert not [item for item in documents if item["kind"] == "Secret"]
    volumes = pods(documents)[0]["volumes"]
    assert [v["secret"]["secretName"] for v in volumes if "secret" in v] == ["key"]


def test_the_definition_is_the_generated_one_and_stays_after_an_uninstall(render: Render) -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "crds/llmdeployments.paceline.dev.yaml").read_text(encoding="utf-8")
    generated = yaml.safe_load(text)
    rendered = one(render(), "CustomResourceDefinition")
    assert rendered["spec"] == generated["spec"]
    assert rendered["metadata"]["name"] == generated["metadata"]["name"]
    assert rendered["metadata"]["annotations"] == {
        **generated["metadata"]["annotations"],
        "helm.sh/resource-policy": "keep",
        "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
    }


def test_a_policy_names_what_is_allowed(render: Render, everything: Document) -> None:
    policy = one(render(everything), "ValidatingAdmissionPolicy", "-llmdeployments")
    told = " ".join(rule["message"] for rule in policy["spec"]["validations"])
    for word in ("registry.example/", "hf://Qwen/, pvc://", "at most 8"):
        assert word in told


WRONG: dict[str, tuple[Document, str]] = {
    "an unknown value": ({"operater": {}}, "operater"),
    "an unknown value below": ({"engine": {"podDefaults": {"hostNetwork": True}}}, "hostNetwork"),
    "a word of another list": ({"scope": "Everywhere"}, "scope"),
    "a number as text": ({"operator": {"replicas": "2"}}, "replicas"),
    "too many replicas": ({"operator": {"replicas": 9}}, "replicas"),
    "a url without a scheme": ({"prometheus": {"url": "prometheus:9090"}}, "url"),
    "namespaces of an install for all": ({"namespaces": ["models"]}, "namespaces"),
    "a share as a number": ({"prometheusRule": {"sloAttainment": 0.99}}, "sloAttainment"),
    "a namespace in capitals": ({**NAMESPACED, "namespaces": ["Models"]}, "namespaces"),
    "an instance that is no label": ({"instance": "a/b"}, "instance"),
    "two sources of one token": (
        {"prometheus": {"useServiceAccountToken": True, "bearerTokenSecret": {"name": "x"}}},
        "prometheus",
    ),
    "a label that selects the operator": (
        {"commonLabels": {"app.kubernetes.io/name": "mine"}},
        "app.kubernetes.io/name",
    ),
    "another on its pods alone": (
        {"operator": {"podLabels": {"app.kubernetes.io/instance": "mine"}}},
        "app.kubernetes.io/instance",
    ),
    "a short digest": ({"engine": {"image": {"repository": "x", "digest": "sha256:0"}}}, "digest"),
}


@pytest.mark.parametrize(("values", "told"), WRONG.values(), ids=WRONG.keys())
def test_the_schema_refuses(chart: helm_python.Chart, values: Document, told: str) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        chart.validate_schema(values)
    assert told in str(refused.value)
    with pytest.raises(helm_python.HelmError):
        chart.render(values, name="pl", namespace="serving")


def test_values_and_schema_name_the_same_keys() -> None:
    root = Path(__file__).resolve().parents[2] / "charts" / "paceline"
    values = yaml.safe_load((root / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((root / "values.schema.json").read_text(encoding="utf-8"))

    def missing(path: str, value: Any, node: Document) -> list[str]:
        known = node.get("properties", {})
        if not isinstance(value, dict) or not known:
            return []
        absent = [f"{path}{key}" for key in known if key not in value and key != "global"]
        if path == "engine.podDefaults.":
            return []
        return absent + [
            found
            for key, child in value.items()
            for found in missing(f"{path}{key}.", child, known[key])
        ]

    assert missing("", values, schema) == []

"""What a manifest means on one machine: honoured, refused or listed, never passed over."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from paceline import local, serve
from paceline.errors import CommandError
from paceline.local import LocalPlan
from paceline.parser import Parser
from paceline_crds import llmdeployment, objective, support
from paceline_crds.settings import knobs
from paceline_crds.spec import LLMDeploymentSpec


def plan(spec: dict[str, Any], **options: Any) -> LocalPlan:
    document = {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "demo"},
        "spec": {"model": {"uri": "demo"}, **spec},
    }
    deployment = llmdeployment.loads(yaml.safe_dump(document))
    return local.plan_of(deployment, environ=options.pop("environ", {}), **options)


def refusal(spec: dict[str, Any], **options: Any) -> str:
    with pytest.raises(CommandError) as caught:
        plan(spec, **options)
    return str(caught.value)


def test_a_minimal_manifest_pins_nothing() -> None:
    got = plan({})
    assert (got.port, got.num_replicas, got.model_name) == (8000, 1, "demo")
    assert got.settings == {}
    assert got.ignored == ()
    assert got.serve_arguments() == [
        *("demo", "--served-model-name", "demo", "--shutdown-timeout-s", "120")
    ]


def test_settings_become_flags() -> None:
    got = plan(
        {
            "dtype": "Float32",
            "scheduling": {"maxNumSeqs": 4, "queue": {"timeout": "2m"}},
            "kvCache": {"prefixCaching": False, "gpuMemoryUtilization": "0.5"},
            "slo": {"itl": {"target": "50ms"}},
        }
    )
    flags = got.serve_arguments()[5:]
    assert flags[flags.index("--max-num-seqs") + 1] == "4"
    assert flags[flags.index("--dtype") + 1] == "Float32"
    assert flags[flags.index("--queue-timeout-s") + 1] == "120"
    assert flags[flags.index("--slo-itl-ms") + 1] == "50"
    assert "--no-enable-prefix-caching" in flags


def test_an_objective_gives_starting_values_and_spec_wins_over_it() -> None:
    got = plan({"objective": "Throughput", "scheduling": {"maxNumSeqs": 7}})
    assert got.settings["max_num_batched_tokens"] == 16384
    assert got.settings["max_num_seqs"] == 7


def test_what_a_laptop_can_do_is_honoured() -> None:
    got = plan(
        {
            "model": {"uri": "hf://org/name", "revision": "v1", "servedName": "m"},
            "replicas": 2,
            "service": {"port": 9001},
            "drain": {"shutdownTimeoutSeconds": 0},
            "extraArgs": ["--strict", "--num-kv-blocks=64"],
            "env": [{"name": "A", "value": "1"}],
        }
    )
    assert (got.port, got.num_replicas, got.model_name, got.env) == (9001, 2, "m", {"A": "1"})
    assert list(got.arguments) == [
        *("hf://org/name", "--served-model-name", "m", "--shutdown-timeout-s", "0"),
        *("--revision", "v1", "--strict", "--num-kv-blocks=64"),
    ]
    assert plan({}, port=7).port == 7


def test_fields_of_a_cluster_are_listed_as_ignored() -> None:
    got = plan(
        {
            "image": "registry/engine:1",
            "resources": {"gpus": 1},
            "podTemplate": {"labels": {"a": "b"}},
            "rollout": {"strategy": "Surge"},
            "monitoring": {"podMonitor": {"enabled": True}},
            "service": {"type": "NodePort"},
            "model": {"uri": "hf://a/b", "tokenSecretRef": {"name": "hub", "key": "token"}},
        }
    )
    assert got.ignored == (
        *("image", "resources", "rollout", "monitoring", "podTemplate"),
        *("model.tokenSecretRef (set HF_TOKEN here)", "service.type"),
    )


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ({"tensorParallelSize": 2}, ["spec.tensorParallelSize"]),
        ({"runtime": "VLLM"}, ["spec.runtime must be Paceline here, got VLLM"]),
        ({"replicas": 0}, ["spec.replicas must be >= 1 here, got 0"]),
        ({"model": {"uri": "s3://bucket/m"}}, ["spec.model.uri must be demo", "s3://bucket/m"]),
        (
            {"model": {"uri": "demo", "loraAdapters": [{"name": "a", "uri": "hf://a/b"}]}},
            ["spec.model.loraAdapters is not supported"],
        ),
        (
            {"service": {"apiKeySecretRef": {"name": "keys", "key": "keys"}}},
            ["spec.service.apiKeySecretRef", "--api-key-file"],
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            ["spec.env[A].valueFrom", "set A in this shell"],
        ),
        ({"extraArgs": ["--port=1"]}, ["spec.extraArgs must not carry --port"]),
        ({"extraArgs": ["--no-such-flag"]}, ["spec.extraArgs: unrecognized", "--no-such-flag"]),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(spec: dict[str, Any], parts: list[str]) -> None:
    text = refusal(spec)
    for part in parts:
        assert part in text


def test_all_refusals_come_at_once_and_each_field_once() -> None:
    lines = refusal({"runtime": "VLLM", "replicas": 0, "tensorParallelSize": 4}).splitlines()
    assert len(lines) == 4


def test_what_a_secret_holds_can_come_from_the_shell() -> None:
    variable = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    assert plan({"env": [variable]}, environ={"A": "x"}).env == {"A": "x"}
    secret = {"service": {"apiKeySecretRef": {"name": "keys", "key": "keys"}}}
    assert "--api-key-file" in plan(secret, api_key_file="keys").arguments


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted paths of all fields that are no objects with fields of their own."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        inner = [
            kind
            for kind in (field.annotation, *get_args(field.annotation))
            if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        if inner:
            yield from leaves(inner[0], path + ".")
        else:
            yield path


def test_every_field_of_the_resource_has_been_decided() -> None:
    settings = {knob.spec for knob in knobs().values() if knob.spec}
    refused = {path for path, _ in support._NOT_YET}
    decided = settings | refused | {*local.HONOURED, *local.IGNORED}
    undecided = [
        path
        for path in leaves(LLMDeploymentSpec)
        if not any(path == known or path.startswith(known + ".") for known in decided)
    ]
    assert undecided == []


@pytest.mark.parametrize("memory", [None, 24 * 10**9, 80 * 10**9])
def test_a_plain_manifest_and_a_plain_serve_mean_the_same_settings(memory: int | None) -> None:
    parser = Parser(prog="paceline serve")
    serve.add_arguments(parser)
    by_manifest = serve.config_of(parser.parse_args(plan({}).serve_arguments())).settings
    by_flags = serve.config_of(parser.parse_args(["demo"])).settings
    assert by_manifest.model_fields_set == by_flags.model_fields_set == set()
    assert objective.for_device(by_manifest, memory) == objective.for_device(by_flags, memory)


def test_an_objective_wins_over_the_device() -> None:
    parser = Parser(prog="paceline serve")
    serve.add_arguments(parser)
    arguments = plan({"objective": "Throughput"}).serve_arguments()
    settings = serve.config_of(parser.parse_args(arguments)).settings
    started = objective.for_device(settings, 24 * 10**9)
    assert (started.max_num_batched_tokens, started.max_num_seqs) == (16384, 512)

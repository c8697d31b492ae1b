"""Pods pass the restricted profile and carry nothing that a running engine can change."""

import argparse
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_crds import flags, llmdeployment
from paceline_crds.flags import flag_of
from paceline_crds.knob import ChangeClass
from paceline_crds.settings import knobs
from paceline_operator.decide import preview
from paceline_operator.decide.observed import Config, Inputs
from paceline_operator.resources.parse import Refused

NAME = "a" * 52
OPERATOR = {"app.kubernetes.io/name": "paceline-operator"}


def rendered(
    spec: dict[str, Any], *, name: str = NAME, pod_defaults: dict[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    manifest = {
        "apiVersion": llmdeployment.API_VERSION,
        "kind": llmdeployment.KIND,
        "metadata": {"name": name, "namespace": "models"},
        "spec": {"model": {"uri": "demo"}, **spec},
    }
    inputs = Inputs(engine_image="e:1", vllm_image="v:1", pod_defaults=pod_defaults or {})
    config = Config(
        operator_namespace="paceline",
        operator_labels=OPERATOR,
        known_kinds=frozenset({"PodMonitor", "InferencePool"}),
    )
    found = preview.documents(manifest, inputs, config)
    assert not isinstance(found, Refused), found
    return {item["kind"]: item for item in found}


def pod(spec: dict[str, Any], **options: Any) -> dict[str, Any]:
    template = rendered(spec, **options)["Deployment"]["spec"]["template"]
    return dict(template["spec"])


def arguments(spec: dict[str, Any], **options: Any) -> list[str]:
    return list(pod(spec, **options)["containers"][0]["args"])


VLLM = {"runtime": "VLLM", "model": {"uri": "hf://a/b@v1"}}


@pytest.mark.parametrize("spec", [{}, VLLM], ids=["Paceline", "VLLM"])
def test_pods_pass_the_restricted_profile(spec: dict[str, Any]) -> None:
    made = pod(spec)
    assert made["automountServiceAccountToken"] is False
    assert made["securityContext"]["runAsNonRoot"] is True
    assert made["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = made["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert not [volume for volume in made["volumes"] if "hostPath" in volume]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in made["volumes"]
    }


def test_settings_are_mounted_as_a_folder_so_that_new_ones_arrive() -> None:
    (container,) = pod({})["containers"]
    assert not [mount for mount in container["volumeMounts"] if "subPath" in mount]
    assert "--settings-file=/etc/paceline/settings/settings.json" in container["args"]


def test_no_live_setting_ever_stands_in_the_command_line() -> None:
    scheduling = {"maxNumSeqs": 7, "maxNumBatchedTokens": 64, "policy": "Priority", "aging": "1s"}
    given = arguments(
        {
            "scheduling": scheduling | {"watermark": "0.1", "queue": {"maxRequests": 3}},
            "kvCache": {"prefixCaching": False},
            "slo": {"ttft": {"target": "1s"}},
        }
    )
    live = {flag_of(name) for name, knob in knobs().items() if knob.change is ChangeClass.LIVE}
    assert not live & {argument.split("=")[0] for argument in given}


def test_restart_class_settings_and_boot_maxima_stand_in_the_command_line() -> None:
    given = arguments({"dtype": "Float32", "kvCache": {"blockSize": 32}, "maxModelLen": 100})
    assert {"--dtype=Float32", "--block-size=32", "--max-model-len=100"} <= set(given)
    assert {"--boot-max-num-seqs=256", "--boot-max-num-batched-tokens=4096"} <= set(given)


def test_a_gpu_without_an_objective_leaves_the_limits_to_the_engine() -> None:
    given = arguments({"resources": {"gpus": 1}})
    assert not [argument for argument in given if argument.startswith("--boot-max-num-seqs")]
    body = rendered({"resources": {"gpus": 1}})["ConfigMap"]["data"]["settings.json"]
    assert "maxNumSeqs" not in json.loads(body)["settings"]


def test_the_grace_period_holds_both_phases_and_a_margin() -> None:
    made = pod({"drain": {"preStopSeconds": 7, "shutdownTimeoutSeconds": 30}})
    assert made["terminationGracePeriodSeconds"] == 47
    assert "--sigterm-propagation-s=7" in made["containers"][0]["args"]
    assert "lifecycle" not in made["containers"][0]


def test_probes_ask_what_they_are_for() -> None:
    (container,) = pod({})["containers"]
    paths = {
        kind: container[kind]["httpGet"]["path"]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {
        "startupProbe": "/health/startup",
        "livenessProbe": "/health/live",
        "readinessProbe": "/health/ready",
    }


def test_stock_vllm_gets_its_own_flags_probes_and_a_wait_before_it_ends() -> None:
    made = pod({**VLLM, "objective": "Interactive", "kvCache": {"dtype": "FP8"}})
    (container,) = made["containers"]
    assert container["command"] == ["vllm", "serve"]
    assert container["args"][0] == "a/b"
    assert {
        "--revision=v1",
        "--served-model-name=a/b",
        "--max-num-seqs=128",
        "--max-num-batched-tokens=2048",
        "--kv-cache-dtype=fp8",
    } <= set(container["args"])
    assert container["lifecycle"] == {"preStop": {"sleep": {"seconds": 10}}}
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert container["image"] == "v:1"
    assert [port["name"] for port in container["ports"]] == ["http"]
    assert "ConfigMap" not in rendered(VLLM)


@pytest.mark.parametrize("drafts", [0, 3])
def test_the_engine_takes_the_flags_of_speculation(drafts: int) -> None:
    parser = argparse.ArgumentParser()
    flags.add_setting_flags(parser)
    given = arguments({"speculative": {"method": "Ngram", "numTokens": drafts}})
    settings, _ = parser.parse_known_args(given)
    assert flags.settings_from_args(settings).speculative_method == "Ngram"


@pytest.mark.parametrize(
    ("path", "flag"),
    [
        (("kvCache", "prefixCaching"), "enable-prefix-caching"),
        (("scheduling", "overlap"), "async-scheduling"),
    ],
)
def test_a_switch_of_vllm_is_a_flag_of_two_forms(path: tuple[str, str], flag: str) -> None:
    section, field = path
    said = {value: arguments({**VLLM, section: {field: value}}) for value in (True, False)}
    assert f"--{flag}" in said[True]
    assert f"--no-{flag}" in said[False]
    assert not [argument for argument in arguments(VLLM) if flag in argument]


def test_host_memory_for_kv_blocks_is_a_flag_of_both_runtimes() -> None:
    offload = {"kvCache": {"offload": {"hostMemory": "1536Mi"}}}
    assert "--kv-offload-host-memory=1536Mi" in arguments(offload)
    given = arguments({**VLLM, **offload})
    assert {"--kv-offloading-size=1.5", "--kv-offloading-backend=native"} <= set(given)
    assert not [flag for flag in arguments(VLLM) if "offload" in flag]


def test_the_engine_is_told_which_model_drafts() -> None:
    draft = {"method": "DraftModel", "model": "hf://org/small", "numTokens": 3}
    given = arguments({"speculative": draft})
    assert "--speculative-method=DraftModel" in given
    assert "--speculative-model=hf://org/small" in given
    told = json.dumps(arguments({**VLLM, "speculative": draft}))
    assert "org/small" in told
    assert "hf://org/small" not in told


def test_speculation_of_vllm_is_one_json_flag() -> None:
    speculative = {"method": "Ngram", "numTokens": 3, "maxLookup": 5}
    (flag,) = [
        argument
        for argument in arguments({**VLLM, "speculative": speculative})
        if argument.startswith("--speculative-config=")
    ]
    assert json.loads(flag.partition("=")[2]) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 5,
    }


@pytest.mark.parametrize(
    ("model", "argument", "volume"),
    [
        ({"uri": "pvc://claim/sub/dir"}, "/model/sub/dir", "persistentVolumeClaim"),
        ({"uri": "pvc://claim"}, "/model", "persistentVolumeClaim"),
        ({"uri": "oci://r/m:1"}, "/model", "image"),
    ],
)
def test_a_model_in_a_volume_is_mounted(model: dict[str, Any], argument: str, volume: str) -> None:
    made = pod({"model": model})
    assert made["containers"][0]["args"][1] == argument
    (found,) = [item for item in made["volumes"] if item["name"] == "model"]
    assert volume in found


@pytest.mark.parametrize(
    ("cache", "source"),
    [
        ({"type": "PVC", "pvc": {"claimName": "c"}}, "persistentVolumeClaim"),
        ({"type": "EmptyDir", "emptyDir": {"sizeLimit": "1Gi"}}, "emptyDir"),
        ({"type": "Image", "image": {"reference": "r:1"}}, "emptyDir"),
    ],
)
def test_a_cache_is_a_volume(cache: dict[str, Any], source: str) -> None:
    made = pod({"model": {"uri": "hf://a/b", "cache": cache}})
    (found,) = [item for item in made["volumes"] if item["name"] == "cache"]
    assert source in found
    names = {item["name"] for item in made["volumes"]}
    assert ("cache-image" in names) == (cache["type"] == "Image")


def test_secrets_are_mounted_as_files_and_stand_in_no_variable() -> None:
    made = pod(
        {
            "model": {"uri": "hf://a/b", "tokenSecretRef": {"name": "hub", "key": "t"}},
            "service": {"apiKeySecretRef": {"name": "keys", "key": "k"}},
        }
    )
    secrets = {volume["secret"]["secretName"] for volume in made["volumes"] if "secret" in volume}
    assert secrets == {"hub", "keys"}
    assert "secretKeyRef" not in json.dumps(made["containers"])
    assert "--api-key-file=/etc/paceline/api-keys/keys" in made["containers"][0]["args"]


def test_pod_defaults_of_the_chart_give_way_to_spec() -> None:
    defaults = {
        "nodeSelector": {"a": "1", "b": "1"},
        "env": [{"name": "A", "value": "1"}],
        "volumes": [{"name": "usr", "persistentVolumeClaim": {"claimName": "usr"}}],
        "volumeMounts": [{"name": "usr", "mountPath": "/usr", "readOnly": True}],
        "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": "1"}},
        "unknown": {"x": 1},
    }
    spec = {
        "env": [{"name": "A", "value": "2"}],
        "podTemplate": {"nodeSelector": {"b": "2"}},
        "resources": {"requests": {"memory": "1Gi"}},
    }
    made = pod(spec, pod_defaults=defaults)
    (container,) = made["containers"]
    assert made["nodeSelector"] == {"a": "1", "b": "2"}
    assert [item["value"] for item in container["env"] if item["name"] == "A"] == ["2"]
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert container["imagePullPolicy"] == "Never"
    assert made["volumes"][-1]["name"] == "usr"


def test_our_labels_win_over_those_of_people() -> None:
    labels = {"paceline.dev/deployment": "other", "team": "a"}
    template = rendered({"podTemplate": {"labels": labels}})["Deployment"]["spec"]["template"]
    assert template["metadata"]["labels"]["paceline.dev/deployment"] == NAME
    assert template["metadata"]["labels"]["team"] == "a"


def test_names_and_label_values_of_the_longest_name_fit() -> None:
    for item in rendered({"replicas": 2}).values():
        assert len(item["metadata"]["name"]) <= 63
        assert all(len(value) <= 63 for value in item["metadata"]["labels"].values())


def test_an_upper_case_model_with_slashes_is_no_label() -> None:
    spec = {"model": {"uri": "hf://Org/Model-7B_v1", "servedName": "Org/Model:7B"}}
    for item in rendered(spec).values():
        assert "Org" not in json.dumps(item["metadata"]["labels"])


def test_the_admin_port_is_open_to_the_operator_alone() -> None:
    ingress = rendered({})["NetworkPolicy"]["spec"]["ingress"]
    ports = [[port["port"] for port in rule["ports"]] for rule in ingress]
    assert ports == [["http"], ["admin"]], "a rule without ports would open all of them"
    assert ingress[1]["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "paceline"}},
            "podSelector": {"matchLabels": OPERATOR},
        }
    ]
    assert "admin" not in json.dumps(rendered(VLLM)["NetworkPolicy"]["spec"])


def test_an_inference_pool_is_there_only_where_it_is_asked_for() -> None:
    assert "InferencePool" not in rendered({})
    gateway = {"inferencePool": {"endpointPicker": {"name": "epp", "port": 9002}}}
    pool = rendered({"gateway": gateway})["InferencePool"]["spec"]
    assert pool["endpointPickerRef"]["name"] == "epp"
    assert pool["targetPorts"] == [{"number": 8000}]


def test_a_pod_monitor_can_be_turned_off_and_labelled() -> None:
    assert "PodMonitor" not in rendered({"monitoring": {"podMonitor": {"enabled": False}}})
    monitor = rendered({"monitoring": {"podMonitor": {"interval": "5s", "labels": {"r": "x"}}}})
    assert monitor["PodMonitor"]["metadata"]["labels"]["r"] == "x"
    assert monitor["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["interval"] == "5s"


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    spec=st.fixed_dictionaries(
        {},
        optional={
            "replicas": st.integers(0, 3),
            "maxModelLen": st.integers(8, 100),
            "env": st.just([{"name": "A", "value": "b"}]),
            "extraArgs": st.just(["--strict"]),
        },
    )
)
def test_rendering_is_a_function_of_its_arguments(spec: dict[str, Any]) -> None:
    assert json.dumps(rendered(spec)) == json.dumps(rendered(json.loads(json.dumps(spec))))

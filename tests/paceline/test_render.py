"""`paceline render` prints what the operator creates."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline import cli, render
from paceline_operator.decide.observed import Config
from paceline_operator.testing.world import World

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
SPEC: Mapping[str, Any] = {
    "model": {"uri": "demo"},
    "replicas": 2,
    "scheduling": {"maxNumSeqs": 33},
    "gateway": {"inferencePool": {"endpointPicker": {"name": "epp", "port": 9002}}},
}


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert cli.main(["render", *arguments]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def manifest(tmp_path: Path, spec: Mapping[str, Any] = SPEC) -> str:
    file = tmp_path / "demo.yaml"
    document = {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "demo", "namespace": "models"},
        "spec": spec,
    }
    file.write_text(yaml.safe_dump(document))
    return str(file)


def without_what_a_server_gives(item: dict[str, Any]) -> dict[str, Any]:
    metadata = {
        key: value
        for key, value in item["metadata"].items()
        if key in {"name", "namespace", "labels", "annotations"}
    }
    kept = {key: value for key, value in item.items() if key not in {"status", "data"}}
    data = {"settings": item["data"]["settings.json"]} if "data" in item else {}
    return {**kept, **data, "metadata": metadata}


def test_it_is_what_a_cluster_ends_up_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from paceline_operator.decide import normalise

    file, inputs = manifest(tmp_path), render.inputs_of({})
    world = World(
        SPEC, inputs=inputs, config=Config(known_kinds=frozenset({"PodMonitor", "InferencePool"}))
    )
    world.settle()
    found = {
        f"{item['kind']}/{item['metadata']['name']}": item for item in printed(capsys, "-f", file)
    }
    children = {
        f"{kind}/{name}": item
        for (kind, name), item in world.store.objects.items()
        if kind not in {"Pod", "LLMDeployment"}
    }
    assert found.keys() == children.keys()
    for name, item in found.items():
        assert normalise.is_within(
            without_what_a_server_gives(item), without_what_a_server_gives(children[name])
        ), name


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_renders(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {item["kind"] for item in printed(capsys, "-f", str(example))}
    is_vllm = "runtime: VLLM" in example.read_text(encoding="utf-8")
    assert {"Service", "NetworkPolicy", "Deployment"} <= kinds
    assert ("ConfigMap" in kinds) is not is_vllm, "stock vLLM takes no live settings"


def test_the_charts_values_decide_images_and_pod_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        json.dumps(
            {
                "engine": {
                    "image": {"repository": "r/engine", "tag": "7"},
                    "podDefaults": {"nodeSelector": {"pool": "gpu"}},
                }
            }
        )
    )
    documents = printed(capsys, "-f", manifest(tmp_path), "--values", str(values))
    (deployment,) = [item for item in documents if item["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "r/engine:7"
    assert pod["nodeSelector"] == {"pool": "gpu"}


def test_without_values_images_are_those_of_the_chart_of_this_release() -> None:
    chart = ROOT / "charts/paceline"
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert about["appVersion"] == about["version"] == project["version"]

    found = render.inputs_of({})
    assert found == render.inputs_of(values)
    assert found.engine_image.startswith(values["engine"]["image"]["repository"] + ":")
    vllm = values["engine"]["vllmImage"]
    assert found.vllm_image == f"{vllm['repository']}:{vllm['tag']}"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("r/engine:7", "r/engine:7"),
        ({"repository": "r/engine", "tag": "7"}, "r/engine:7"),
        ({"tag": "7"}, "ghcr.io/paceline/paceline-engine:7"),
        ({"repository": "r/engine", "tag": "7", "digest": "sha256:0"}, "r/engine@sha256:0"),
    ],
)
def test_an_image_is_put_together_as_the_chart_does(image: Any, expected: str) -> None:
    assert render.inputs_of({"engine": {"image": image}}).engine_image == expected


def test_a_kind_that_the_cluster_lacks_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifest(tmp_path)
    kinds = [item["kind"] for item in printed(capsys, "-f", file, "--without", "PodMonitor")]
    assert "PodMonitor" not in kinds
    assert "InferencePool" in kinds


def test_a_spec_that_cannot_be_served_is_refused_as_the_operator_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifest(tmp_path, {"model": {"uri": "demo"}, "tensorParallelSize": 2})
    assert cli.main(["render", "-f", file]) == 2
    assert "NotSupported: spec.tensorParallelSize" in capsys.readouterr().err


def test_rendering_twice_prints_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifest(tmp_path)
    assert printed(capsys, "-f", file) == printed(capsys, "-f", file)


def test_tenants_lie_in_the_settings_file_and_their_header_in_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduling = {
        "policy": "Fair",
        "tenants": [{"name": "gold", "weight": 3, "maxSeqs": 8}],
        "trustTenantHeader": True,
    }
    documents = printed(
        capsys, "-f", manifest(tmp_path, {"model": {"uri": "demo"}, "scheduling": scheduling})
    )
    by_kind = {item["kind"]: item for item in documents}
    live = json.loads(by_kind["ConfigMap"]["data"]["settings.json"])["settings"]
    assert live["schedulingPolicy"] == "Fair"
    assert live["tenants"] == [{"name": "gold", "weight": 3, "maxSeqs": 8, "budgetShare": "1"}]
    arguments = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--trust-tenant-header" in arguments
    assert not any("tenants" in argument for argument in arguments)

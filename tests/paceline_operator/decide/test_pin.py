"""Which changes replace pods: those of spec that pods are made of, and nothing else."""

import json
from dataclasses import replace
from typing import Any

import pytest

from paceline_operator.decide import pin
from paceline_operator.decide.observed import Inputs
from paceline_operator.render import inputs, names
from paceline_operator.render.pods import Template
from paceline_operator.resources import objects, parse
from paceline_operator.resources.parse import Parsed
from paceline_operator.testing.world import World
from paceline_operator.testing.worlds import settled, spec_of


def hashes(world: World) -> list[str]:
    return [objects.labels(item)[names.HASH_LABEL] for item in world.store.of_kind("Deployment")]


def moved(world: World, spec: dict[str, Any]) -> bool:
    """Whether an edit replaces pods."""
    before = hashes(world)
    world.edit(spec)
    world.settle()
    return hashes(world) != before


L0_AND_L1 = [
    {"replicas": 2},
    {"slo": {"ttft": {"target": "500ms"}}},
    {"scheduling": {"maxNumSeqs": 200, "policy": "Priority", "queue": {"timeout": "3s"}}},
    {"scheduling": {"maxNumBatchedTokens": 4096}},
    {"objective": "Interactive"},
    {"kvCache": {"prefixCaching": False}},
    {"tuning": {"mode": "Off"}},
    {"rollout": {"strategy": "InPlace", "progressDeadline": "5m"}},
    {"service": {"port": 9000, "type": "NodePort"}},
    {"monitoring": {"podMonitor": {"enabled": False}}},
    {"paused": True},
    {"runtime": "Paceline"},
    {"resources": {"gpus": 0}},
]
L3 = [
    {"model": {"uri": "demo", "servedName": "other"}},
    {"image": "engine:2"},
    {"maxModelLen": 128},
    {"dtype": "Float32"},
    {"kvCache": {"gpuMemoryUtilization": "0.5"}},
    {"scheduling": {"bootMaxNumSeqs": 300}},
    {"objective": "Throughput"},
    {"objective": "FirstToken"},
    {"extraArgs": ["--strict"]},
    {"env": [{"name": "A", "value": "b"}]},
    {"resources": {"requests": {"cpu": 2}}},
    {"podTemplate": {"annotations": {"a": "b"}}},
    {"drain": {"preStopSeconds": 3}},
    {"service": {"apiKeySecretRef": {"name": "keys", "key": "k"}}},
]


@pytest.mark.parametrize("fields", L0_AND_L1, ids=json.dumps)
def test_a_change_that_pods_are_not_made_of_replaces_none(fields: dict[str, Any]) -> None:
    assert not moved(settled(), spec_of(**fields))


@pytest.mark.slow
@pytest.mark.parametrize("fields", L3, ids=json.dumps)
def test_a_change_that_pods_are_made_of_replaces_them(fields: dict[str, Any]) -> None:
    assert moved(settled(), spec_of(**fields))


def test_another_text_of_the_same_amount_replaces_none() -> None:
    world = settled(resources={"requests": {"cpu": "1000m", "memory": "1Gi"}})
    assert not moved(world, spec_of(resources={"requests": {"cpu": 1, "memory": "1024Mi"}}))
    assert world.plan().actions == ()


def test_an_upgrade_of_the_chart_restarts_nothing() -> None:
    world = settled(replicas=2)
    pods = {objects.name(pod) for pod in world.pods()}
    world.inputs = Inputs(engine_image="engine:2", pod_defaults={"nodeSelector": {"a": "b"}})
    assert world.plan().actions == ()
    assert not moved(world, spec_of(replicas=2, scheduling={"maxNumSeqs": 100}))
    assert {objects.name(pod) for pod in world.pods()} == pods
    assert world.status["image"] == "engine:1"


def test_the_users_next_change_of_pods_moves_the_pin() -> None:
    world = settled()
    world.inputs = Inputs(engine_image="engine:2")
    assert moved(world, spec_of(maxModelLen=128))
    assert world.status["image"] == "engine:2"


def test_a_lost_status_changes_nothing() -> None:
    world = settled(replicas=2, scheduling={"maxNumSeqs": 100})
    before, told = hashes(world), world.shape()
    world.inputs = Inputs(engine_image="engine:2")
    del world.document["status"]
    world.store.touch(world.document)
    world.settle()
    assert hashes(world) == before
    assert world.shape() == told


def test_a_boot_maximum_that_spec_leaves_out_is_remembered() -> None:
    world = settled()
    assert not moved(world, spec_of(scheduling={"maxNumSeqs": 16}))
    assert not moved(world, spec_of(scheduling={"maxNumSeqs": 256}))
    assert effective(world, "bootMaxNumSeqs") == "256"


def test_a_value_above_the_remembered_boot_maximum_is_announced_and_replaces_pods() -> None:
    world = settled()
    assert moved(world, spec_of(scheduling={"maxNumSeqs": 257}))
    assert effective(world, "bootMaxNumSeqs") == "514"
    assert "BootMaximumRaised" in [event.reason for event in world.events]


def test_on_a_gpu_the_engines_own_boot_maximum_counts() -> None:
    world = settled(resources={"gpus": 1})
    assert effective(world, "maxNumSeqs") == "1024"
    assert not moved(world, spec_of(resources={"gpus": 1}, scheduling={"maxNumSeqs": 2048}))
    assert effective(world, "maxNumSeqs") == "2048"
    assert not moved(world, spec_of(resources={"gpus": 1}))
    assert {engine.settings["maxNumSeqs"] for engine in world.engines.values()} == {1024}
    assert moved(world, spec_of(resources={"gpus": 1}, scheduling={"maxNumSeqs": 2049}))


def effective(world: World, name: str) -> str:
    return next(str(item["value"]) for item in world.status["effective"] if item["name"] == name)


def test_a_template_of_another_version_is_adopted_as_it_stands() -> None:
    world = settled(replicas=2)
    (deployment,) = world.store.of_kind("Deployment")
    annotations = deployment["metadata"]["annotations"]
    pinned = json.loads(annotations[names.INPUTS_ANNOTATION])
    pinned["templateVersion"] = 99
    annotations[names.INPUTS_ANNOTATION] = json.dumps(pinned)
    world.store.touch(deployment)
    spec = spec_of(replicas=1, maxModelLen=128, scheduling={"maxNumSeqs": 64})
    assert not moved(world, spec)
    assert len(world.pods()) == 1
    assert {engine.settings["maxNumSeqs"] for engine in world.engines.values()} == {64}
    assert world.condition("Degraded") == ("True", "TemplateVersionUnknown")
    assert world.status["templateVersion"] == 99
    assert world.plan().actions == ()


OVERLAY = {"name": "gpuMemoryUtilization", "value": "0.8", "base": "0.92", "baseSource": "Default"}


def test_an_overlay_that_needs_new_pods_moves_no_other_input() -> None:
    world = settled()
    world.inputs = Inputs(engine_image="engine:2")
    before = hashes(world)
    world.document["status"]["tuning"]["overlay"] = [OVERLAY]
    world.settle()
    assert hashes(world) != before
    assert world.status["image"] == "engine:1"
    assert effective(world, "gpuMemoryUtilization") == "0.8"


def test_after_a_lost_status_the_overlay_is_read_back_from_the_deployment() -> None:
    world = settled()
    world.document["status"]["tuning"]["overlay"] = [OVERLAY]
    world.settle()
    before = hashes(world)
    del world.document["status"]
    world.settle()
    assert hashes(world) == before
    (entry,) = world.status["tuning"]["overlay"]
    assert entry["value"] == "0.8"


def test_pinned_inputs_survive_their_annotation() -> None:
    pinned = inputs.PinnedInputs(
        image="a", pod_defaults={"labels": {"a": "b"}}, boot={"bootMaxNumSeqs": 9}
    )
    assert inputs.decode(pinned.encode()) == pinned
    assert inputs.decode(replace(pinned, template_version=2).encode()) is None
    assert inputs.decode("no json") is None
    assert inputs.decode("[]") is None


def test_a_template_is_rendered_once_for_equal_spec_inputs_and_object() -> None:
    def template(inputs: Inputs, **changes: Any) -> Template | None:
        document = {
            "apiVersion": "paceline.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": "demo", "namespace": "n", "uid": "u1", "generation": 1} | changes,
            "spec": {"model": {"uri": "demo"}},
        }
        parsed = parse.parse(document)
        assert isinstance(parsed, Parsed)
        return pin.choose(parsed, (), {}, inputs).template

    chart = Inputs(engine_image="engine:1", vllm_image="vllm:1", pod_defaults={})
    first = template(chart)
    assert first is not None
    assert template(chart, resourceVersion="2") is first
    other = template(replace(chart, engine_image="engine:2"))
    assert other is not None
    assert other.hash != first.hash
    assert template(chart, uid="u2") is not first

"""What a whole plan does: order of writes, whose objects are touched, odd input."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_crds import crd
from paceline_operator.decide import plan as planning
from paceline_operator.decide.actions import Apply, Delete, Event, WriteStatus
from paceline_operator.decide.observed import Config, Inputs, Observed, WriteFailure
from paceline_operator.render.names import INPUTS_ANNOTATION
from paceline_operator.resources import objects
from paceline_operator.testing.world import START, World
from paceline_operator.testing.worlds import settled, spec_of


def test_status_is_written_before_anything_else() -> None:
    world = settled()
    world.edit(spec_of(maxModelLen=99, scheduling={"maxNumSeqs": 3}))
    kinds = [type(action) for action in world.plan().actions]
    assert (kinds[0], kinds.count(WriteStatus)) == (WriteStatus, 1)
    assert Apply in kinds


def test_the_first_visit_gives_every_condition() -> None:
    world = World(spec_of())
    world.reconcile()
    kinds = [item["type"] for item in world.status["conditions"]]
    assert kinds == [
        "Ready",
        "Available",
        "Progressing",
        "ConfigValid",
        "ModelCached",
        "MetricsAvailable",
        "SLOMet",
        "TuningActive",
        "Degraded",
        "Reconciling",
    ]
    assert all(item["observedGeneration"] == 1 for item in world.status["conditions"])


def test_pods_start_only_when_their_config_map_is_there() -> None:
    world = World(spec_of())
    kinds = [action.target.partition("/")[0] for action in world.plan().actions]
    world.reconcile(at_most=kinds.index("Deployment") + 1)  # killed before the next write
    (deployment,) = world.store.of_kind("Deployment")
    assert deployment["spec"]["replicas"] == 0
    assert world.store.of_kind("ConfigMap") == []
    world.reconcile()
    assert len(world.store.of_kind("ConfigMap")) == 1
    assert world.store.of_kind("Deployment")[0]["spec"]["replicas"] == 1


def test_ready_without_pods_is_said_only_once_all_that_serves_is_there() -> None:
    world = World(spec_of(replicas=0))
    said = []
    for _ in range(4):
        world.reconcile()
        said.append((world.condition("Ready"), len(world.store.of_kind("ConfigMap"))))
    pending, ready = ("False", "ChildrenPending"), ("True", "ScaledToZero")
    assert said == [(ready, 1)] * 4
    assert world.journal.count("WriteStatus LLMDeployment/status") == 1
    del world.store.objects["Service", "demo"]
    world.reconcile()
    assert world.condition("Ready") == pending
    world.settle()
    assert world.condition("Ready") == ready


def test_kstatus_conditions_are_there_only_while_true() -> None:
    world = settled()
    assert world.condition("Ready") == ("True", "AllPodsReady")
    assert world.condition("Reconciling") == ("", "")
    assert world.condition("Stalled") == ("", "")


def test_an_existing_child_is_applied_with_the_version_it_was_planned_from() -> None:
    world = settled()
    world.edit(spec_of(service={"port": 9000}))
    (apply,) = [
        action
        for action in world.plan().actions
        if isinstance(action, Apply) and action.manifest["kind"] == "Service"
    ]
    live = world.store.objects["Service", "demo"]["metadata"]
    assert (apply.uid, apply.resource_version) == (live["uid"], live["resourceVersion"])


def test_a_paused_leader_changes_nothing() -> None:
    world = settled(replicas=2)
    world.edit(spec_of(replicas=1))
    stale = world.plan()
    world.edit(spec_of(replicas=2, service={"port": 9000}))
    world.settle()
    before = world.shape()
    world.carry_out(stale)
    assert world.shape() == before


def test_an_object_of_another_install_is_left_alone() -> None:
    world = World(spec_of())
    world.document["metadata"]["labels"] = {"paceline.dev/operator": "blue"}
    assert world.plan() == planning.NOTHING
    world.config = Config(instance="blue")
    assert world.plan().actions


def test_an_object_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    world = World(spec_of())
    world.document["metadata"]["deletionTimestamp"] = "2027-01-01T00:00:00Z"
    assert world.plan() == planning.NOTHING


def test_children_of_a_deleted_namesake_are_waited_for_and_never_written() -> None:
    world = settled()
    world.delete()
    world.create(spec_of())
    for _ in range(3):
        plan = world.reconcile()
        assert not [a for a in plan.actions if isinstance(a, Apply | Delete)]
    assert world.condition("Progressing") == ("True", "WaitingForOldChildren")
    assert plan.requeue_after_s is not None
    world.store.collect_garbage()
    world.settle()
    assert world.condition("Ready") == ("True", "AllPodsReady")


def test_children_of_another_install_are_left_alone() -> None:
    world = settled()
    world.document["metadata"]["labels"] = {"paceline.dev/operator": "blue"}
    world.config = Config(instance="blue")
    world.reconcile()
    assert world.condition("Progressing") == ("True", "WaitingForOldChildren")
    assert not [a for a in world.plan().actions if isinstance(a, Apply | Delete)]


def test_paused_writes_nothing_but_status() -> None:
    world = settled(replicas=2)
    world.edit(spec_of(replicas=1, maxModelLen=99, paused=True))
    plan = world.reconcile()
    assert all(isinstance(action, WriteStatus | Event) for action in plan.actions)
    assert world.condition("Progressing") == ("Unknown", "Paused")
    world.settle()
    assert len(world.pods()) == 2


def test_a_wrong_spec_leaves_the_last_good_template_and_still_scales() -> None:
    world = settled(replicas=1)
    (before,) = [item["metadata"]["name"] for item in world.store.of_kind("Deployment")]
    world.edit(spec_of(replicas=2, maxModelLen=256, tensorParallelSize=2))
    world.settle()
    assert world.condition("ConfigValid") == ("False", "NotSupported")
    assert world.condition("Stalled") == ("True", "NotSupported")
    assert world.condition("Available") == ("True", "Serving")
    assert [item["metadata"]["name"] for item in world.store.of_kind("Deployment")] == [before]
    assert len(world.pods()) == 2
    assert world.plan().actions == ()


def test_a_wrong_spec_at_first_makes_nothing_and_says_why() -> None:
    world = World(spec_of(tensorParallelSize=2))
    world.settle()
    assert world.store.of_kind("Deployment") == []
    assert world.condition("Ready") == ("False", "NotSupported")
    assert [event.reason for event in world.events] == ["NotSupported"]
    assert world.events[0].type == "Warning"


def test_a_hand_made_change_of_a_child_is_put_right_once() -> None:
    world = settled()
    service = world.store.objects["Service", "demo"]
    service["spec"]["ports"][0]["port"] = 1234
    world.store.touch(service)
    world.settle()
    assert {port["port"] for port in service["spec"]["ports"]} >= {8000}
    assert world.plan().actions == ()


def test_a_fight_over_a_child_becomes_a_condition() -> None:
    world = settled()
    world.store.objects["Service", "demo"]["spec"]["type"] = "NodePort"
    world.rewrites = {"Service/demo": 5}
    plan = world.reconcile()
    assert not [action for action in plan.actions if isinstance(action, Apply)]
    assert world.condition("Degraded") == ("True", "ChildContended")


def test_a_write_that_keeps_being_refused_becomes_a_condition() -> None:
    world = World(spec_of())
    observed = world.observe()
    failure = WriteFailure(
        action="Apply",
        target="Service/demo",
        code=409,
        reason="Conflict",
        message="conflict with kubectl: .spec.selector",
        times=3,
    )
    with_failure = Observed(
        deployment=observed.deployment, inputs=observed.inputs, failures=(failure,)
    )
    status = planning.plan(with_failure, world.now).actions[0]
    assert isinstance(status, WriteStatus)
    degraded = [c for c in status.status["conditions"] if c["type"] == "Degraded"]
    assert degraded[0]["reason"] == "ChildConflict"


def test_a_kind_that_the_cluster_does_not_know_is_not_written_but_told() -> None:
    pool = {"inferencePool": {"endpointPicker": {"name": "epp", "port": 9002}}}
    world = World(spec_of(gateway=pool))
    world.settle()
    assert world.store.of_kind("InferencePool") == []
    assert world.condition("Degraded") == ("True", "KindMissing")
    world.config = Config(known_kinds=frozenset({"InferencePool"}))
    world.settle()
    assert len(world.store.of_kind("InferencePool")) == 1
    world.edit(spec_of())
    world.settle()
    assert world.store.of_kind("InferencePool") == []


def test_a_new_deployment_and_the_settings_that_it_owns_are_one_plan() -> None:
    world = World(spec_of())
    plan = world.reconcile()
    (made,) = world.store.of_kind("Deployment")
    (owned,) = world.store.of_kind("ConfigMap")
    assert made["spec"]["replicas"] == 0
    assert objects.controller_uid(owned) == objects.uid(made)
    targets = [action.target for action in plan.actions]
    place = targets.index(f"Deployment/{objects.name(made)}")
    assert targets[place + 1] == f"ConfigMap/{objects.name(made)}"
    left = [action.target for action in world.plan().actions if isinstance(action, Apply)]
    assert left == [f"Deployment/{objects.name(made)}"], "its count alone"


def test_a_definition_older_than_the_operator_is_told_and_its_upgrade_noticed() -> None:
    world = World(spec_of())
    world.config = Config(schema_version=0)
    world.settle()
    assert world.condition("Degraded") == ("True", "DefinitionOlder")
    for version in (crd.SCHEMA_VERSION, crd.SCHEMA_VERSION + 1, None):
        world.config = Config(schema_version=version)
        world.settle()
        assert world.condition("Degraded") == ("False", "AsExpected")


def test_fields_of_a_newer_definition_are_told_and_the_rest_of_spec_holds() -> None:
    world = settled()
    world.config = replace(world.config, schema_version=crd.SCHEMA_VERSION + 1)
    world.settle()
    assert world.condition("Degraded") == ("False", "AsExpected"), "it uses none of them"
    world.edit(spec_of(maxModelLen=256, kvCache={"tiers": 2}, future=[1]))
    world.settle()
    assert world.condition("Ready") == ("True", "AllPodsReady")
    assert world.condition("Degraded") == ("True", "DefinitionNewer")
    told = objects.condition(world.document, "Degraded")["message"]
    assert "spec.kvCache.tiers" in told
    assert "spec.future" in told
    world.edit(spec_of(maxModelLen=256))
    world.settle()
    assert world.condition("Degraded") == ("False", "AsExpected")


def test_a_budget_is_lowered_before_a_scale_down_and_raised_once_pods_serve() -> None:
    world = settled(replicas=3)
    world.edit(spec_of(replicas=2))
    targets = [action.target for action in world.plan().actions]
    assert targets.index("PodDisruptionBudget/demo") < min(
        targets.index(target) for target in targets if target.startswith("Pod/")
    )
    world.settle()
    world.edit(spec_of(replicas=4))
    world.reconcile()
    budget = world.store.objects["PodDisruptionBudget", "demo"]
    assert budget["spec"]["minAvailable"] == 1
    world.settle()
    assert budget["spec"]["minAvailable"] == 3
    world.edit(spec_of(replicas=1))
    world.settle()
    assert world.store.of_kind("PodDisruptionBudget") == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def damaged(value: Any, draw: Any, depth: int = 0) -> Any:
    """A copy with one place replaced by any JSON value, or taken away."""
    if not isinstance(value, dict | list) or not value or (depth > 1 and draw(st.booleans())):
        return draw(JSON)
    keys = sorted(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(st.sampled_from(keys))
    copied = dict(value) if isinstance(value, dict) else list(value)
    if draw(st.integers(0, 9)) == 0:
        del copied[key]
    else:
        copied[key] = damaged(value[key], draw, depth + 1)
    return copied


@cache
def observed_in_the_middle_of_a_rollout() -> Observed:
    world = settled(replicas=2)
    world.edit(spec_of(replicas=2, maxModelLen=256))
    for _ in range(5):
        world.reconcile()
        world.tick()
    return world.observe()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_damage_to_what_is_observed_makes_it_raise(data: st.DataObject) -> None:
    observed = observed_in_the_middle_of_a_rollout()
    what = data.draw(st.sampled_from(["deployment", "pods", *observed.children]))
    if what == "deployment":
        odd = replace(observed, deployment=damaged(observed.deployment, data.draw))
    elif what == "pods":
        odd = replace(observed, pods=tuple(damaged(list(observed.pods), data.draw, 1)))
    else:
        listed = list(observed.children[what])
        items = damaged(listed, data.draw, 1) if listed else []
        odd = replace(observed, children={**observed.children, what: tuple(items)})
    planning.plan(odd, START + 100)


@pytest.mark.parametrize("spec", [None, [], "x", {}])
def test_a_child_whose_spec_is_odd_is_no_error(spec: Any) -> None:
    observed = observed_in_the_middle_of_a_rollout()
    odd = tuple({**child, "spec": spec} for child in observed.children["Deployment"])
    children = {**observed.children, "Deployment": odd}
    assert planning.plan(replace(observed, children=children), START + 100).actions


NESTED = "[" * 100_000


@pytest.mark.parametrize("text", [NESTED, '{"templateVersion": 1, "boot": ' + NESTED, "9" * 9000])
def test_an_annotation_of_nonsense_is_no_error(text: str) -> None:
    observed = observed_in_the_middle_of_a_rollout()
    odd = tuple(
        {**child, "metadata": {**child["metadata"], "annotations": {INPUTS_ANNOTATION: text}}}
        for child in observed.children["Deployment"]
    )
    children = {**observed.children, "Deployment": odd}
    assert planning.plan(replace(observed, children=children), START + 100).actions


@pytest.mark.parametrize("text", [NESTED, '{"revision": 3, "settings": {"maxNumSeqs": "x"}}'])
def test_settings_of_nonsense_are_no_error_while_spec_is_refused(text: str) -> None:
    observed = observed_in_the_middle_of_a_rollout()
    odd = tuple(
        {**child, "data": {"settings.json": text}} for child in observed.children["ConfigMap"]
    )
    children = {**observed.children, "ConfigMap": odd}
    wrong = {**observed.deployment, "spec": {"replicas": 2}}
    seen = replace(observed, deployment=wrong, children=children)
    assert planning.plan(seen, START + 100).actions


def test_nothing_at_all_is_no_work() -> None:
    assert (
        planning.plan(Observed(deployment={}, inputs=Inputs(engine_image="a")), 0.0).actions == ()
    )

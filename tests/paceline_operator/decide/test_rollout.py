"""Pods are replaced, added and taken away in the right order and never too many at once."""

from collections.abc import Callable

import pytest

from paceline_operator.render import names
from paceline_operator.resources import objects
from paceline_operator.testing.world import World
from paceline_operator.testing.worlds import settled, spec_of


def serving(world: World) -> int:
    return sum(
        objects.condition(pod, "Ready").get("status") == "True"
        for pod in world.store.of_kind("Pod")
        if not objects.is_deleted(pod)
    )


def watch(world: World, measure: Callable[[World], int], rounds: int = 40) -> list[int]:
    """Reconcile and let time pass; what `measure` saw after each round."""
    seen = []
    for _ in range(rounds):
        world.reconcile()
        world.tick()
        seen.append(measure(world))
    return seen


def num_pods(world: World) -> int:
    return len(world.store.of_kind("Pod"))


def hash_now(world: World) -> str:
    return str(world.status["wantedHash"])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["Auto", "Surge"])
def test_a_surge_never_serves_with_fewer_pods_and_adds_one_at_a_time(strategy: str) -> None:
    world = settled(replicas=3)
    world.edit(spec_of(replicas=3, maxModelLen=256, rollout={"strategy": strategy}))
    seen = watch(world, lambda world: serving(world) * 100 + len(world.pods()))
    assert min(value // 100 for value in seen) == 3
    assert max(value % 100 for value in seen) == 4
    assert len(world.pods(hash_now(world))) == 3


@pytest.mark.slow
def test_in_place_ends_the_old_pod_before_the_new_one_is_made() -> None:
    world = settled(replicas=2)
    world.edit(spec_of(replicas=2, maxModelLen=256, rollout={"strategy": "InPlace"}))
    assert max(watch(world, num_pods)) == 2
    assert serving(world) == 2
    assert len(world.pods(hash_now(world))) == 2


@pytest.mark.slow
def test_auto_rolls_out_in_place_where_no_device_is_spare() -> None:
    world = settled(gpus_free=2, replicas=2, resources={"gpus": 1})
    assert world.condition("Ready")[0] == "True"
    world.edit(spec_of(replicas=2, resources={"gpus": 1}, maxModelLen=256))
    assert min(watch(world, serving)) == 1
    world.settle()
    assert len(world.pods(hash_now(world))) == 2
    assert world.condition("Ready") == ("True", "AllPodsReady")


@pytest.mark.slow
def test_surge_without_room_is_told_at_once_and_is_false_after_the_deadline() -> None:
    rollout = {"strategy": "Surge", "progressDeadline": "2m"}
    world = settled(gpus_free=1, replicas=1, resources={"gpus": 1}, rollout=rollout)
    world.edit(spec_of(resources={"gpus": 1}, rollout=rollout, maxModelLen=256))
    watch(world, serving, rounds=10)
    assert world.condition("Progressing") == ("True", "InsufficientGPU")
    world.tick(130)
    world.reconcile()
    assert world.condition("Progressing") == ("False", "InsufficientGPU")
    assert world.condition("Stalled") == ("True", "InsufficientGPU")
    assert world.condition("Available") == ("True", "Serving")


def test_a_pod_that_finds_no_room_is_never_silently_pending() -> None:
    world = World(spec_of(resources={"gpus": 1}), gpus_free=0)
    watch(world, serving, rounds=5)
    assert world.condition("Ready") == ("False", "InsufficientGPU")
    assert any(event.reason == "InsufficientGPU" for event in world.events)


def test_a_deadline_is_looked_at_again_without_any_event() -> None:
    world = World(spec_of(resources={"gpus": 1}, rollout={"progressDeadline": "2m"}), gpus_free=0)
    watch(world, serving, rounds=5)
    plan = world.plan()
    assert plan.requeue_after_s is not None
    assert 100 < plan.requeue_after_s < 125


def test_a_revert_in_mid_rollout_keeps_the_pods_of_the_newly_wanted_template() -> None:
    world = settled(replicas=3)
    before = {objects.name(pod) for pod in world.pods()}
    first = hash_now(world)
    world.edit(spec_of(replicas=3, maxModelLen=256))
    watch(world, serving, rounds=5)
    kept = {objects.name(pod) for pod in world.pods(first)}
    world.edit(spec_of(replicas=3))
    world.settle()
    assert hash_now(world) == first
    assert kept <= {objects.name(pod) for pod in world.pods()}
    assert len(kept) >= 2
    assert kept <= before


@pytest.mark.slow
def test_a_crash_loop_stops_growing_and_old_pods_serve_on() -> None:
    world = settled(replicas=4)
    world.breaks = lambda arguments: (
        ("KVCacheTooSmall", "needs 9 blocks") if "--max-model-len=256" in arguments else None
    )
    world.edit(spec_of(replicas=4, maxModelLen=256))
    assert min(watch(world, serving)) == 4
    assert len(world.pods(hash_now(world))) == 1
    assert world.condition("Ready") == ("False", "KVCacheTooSmall")
    message = objects.text(objects.condition(world.document, "Ready"), "message")
    (broken,) = world.pods(hash_now(world))
    assert message.endswith(f"{objects.name(broken)}: needs 9 blocks")
    world.edit(spec_of(replicas=4))
    world.settle()
    assert world.condition("Ready") == ("True", "AllPodsReady")


def test_a_deployment_that_cannot_start_does_not_grow_when_more_is_wanted() -> None:
    world = World(spec_of(replicas=1), load_s=1.0)
    world.breaks = lambda _: ("UnsupportedModel", "no such family")
    watch(world, serving, rounds=5)
    world.edit(spec_of(replicas=4))
    watch(world, serving, rounds=10)
    assert len(world.pods()) == 1
    assert world.condition("Ready") == ("False", "UnsupportedModel")


def test_scale_down_takes_the_idlest_first() -> None:
    world = settled(replicas=3)
    busy = sorted(world.engines)[:2]
    for number, name in enumerate(busy):
        world.engines[name].num_requests = 500 + number
    world.edit(spec_of(replicas=2))
    world.settle()
    assert sorted(world.engines) == busy


def test_a_pod_that_leaves_is_marked_then_drained_then_let_go() -> None:
    world = settled(replicas=2)
    start = len(world.journal)
    world.edit(spec_of(replicas=1))
    world.settle()
    steps = [entry.split()[0] for entry in world.journal[start:] if "Status" not in entry]
    steps = [step for step in steps if step in {"AnnotatePod", "DrainPod", "Apply"}]
    assert steps == ["AnnotatePod", "DrainPod", "Apply"]


@pytest.mark.slow
def test_a_busy_pod_is_waited_for_up_to_the_idle_timeout() -> None:
    rollout = {"strategy": "InPlace", "idleTimeout": "1m"}
    world = settled(replicas=1, rollout=rollout)
    (engine,) = world.engines.values()
    engine.num_requests = 10_000
    world.edit(spec_of(replicas=1, rollout=rollout, maxModelLen=256))
    watch(world, serving, rounds=20)
    assert engine.drain_phase == "Serving"
    assert world.condition("Progressing") == ("True", "WaitingForIdle")
    watch(world, serving, rounds=50)
    assert engine.drain_phase != "Serving"


def test_without_waiting_for_idle_the_drain_begins_at_once() -> None:
    world = settled(replicas=2, rollout={"waitForIdle": False})
    for engine in world.engines.values():
        engine.num_requests = 10_000
    world.edit(spec_of(replicas=1, rollout={"waitForIdle": False}))
    watch(world, serving, rounds=2)
    assert {"Serving", "Draining"} == {engine.drain_phase for engine in world.engines.values()}


@pytest.mark.slow
def test_a_drain_that_never_ends_is_left_to_sigterm_after_its_time() -> None:
    drain = {"preStopSeconds": 1, "shutdownTimeoutSeconds": 20}
    world = World({**spec_of(replicas=2, rollout={"waitForIdle": False}), "drain": drain})
    world.settle()
    for engine in world.engines.values():
        engine.num_requests = 10_000
    world.edit({**spec_of(replicas=1, rollout={"waitForIdle": False}), "drain": drain})
    counts = watch(world, lambda world: len(world.pods()), rounds=40)
    assert counts[15] == 2
    assert counts[-1] == 1


def test_a_marked_pod_that_is_wanted_again_loses_its_mark() -> None:
    world = settled(replicas=2)
    for engine in world.engines.values():
        engine.num_requests = 1000
    world.edit(spec_of(replicas=1))
    watch(world, serving, rounds=3)
    marked = [p for p in world.pods() if objects.annotation(p, names.RETIRING_ANNOTATION)]
    assert len(marked) == 1
    world.edit(spec_of(replicas=2))
    watch(world, serving, rounds=3)
    assert not [p for p in world.pods() if objects.annotation(p, names.RETIRING_ANNOTATION)]
    assert len(world.engines) == 2


@pytest.mark.slow
def test_a_drained_pod_that_is_wanted_again_is_replaced() -> None:
    world = settled(replicas=2)
    name = min(world.engines)
    world.engines[name].drain(0.0, world.now)
    world.settle()
    assert name not in world.engines
    assert len(world.engines) == 2
    assert world.condition("Ready") == ("True", "AllPodsReady")


def test_scaling_to_zero_drains_the_last_pod_and_is_ready() -> None:
    world = settled(replicas=1)
    world.edit(spec_of(replicas=0))
    world.settle()
    assert num_pods(world) == 0
    assert world.condition("Ready") == ("True", "ScaledToZero")
    assert world.condition("Available") == ("False", "ScaledToZero")
    assert "DrainPod" in " ".join(world.journal)


@pytest.mark.slow
def test_a_scaler_never_sees_both_sides_of_a_surge() -> None:
    world = settled(replicas=3)
    world.edit(spec_of(replicas=3, maxModelLen=256))
    assert set(watch(world, lambda world: int(world.status["replicas"]))) == {3}
    assert world.status["selector"] == "paceline.dev/deployment=demo"


@pytest.mark.slow
def test_an_engine_that_cannot_be_reached_does_not_block_the_rollout() -> None:
    world = settled(replicas=1)
    for engine in world.engines.values():
        engine.is_reachable = False
    world.edit(spec_of(replicas=1, maxModelLen=256))
    watch(world, serving)
    assert len(world.pods(hash_now(world))) == 1
    assert len(world.pods()) == 1


@pytest.mark.slow
def test_stock_vllm_pods_are_replaced_without_a_drain_of_ours() -> None:
    spec = {**spec_of(replicas=1), "model": {"uri": "hf://a/b"}, "runtime": "VLLM"}
    world = World(spec, load_s=1.0)
    world.settle()
    for engine in world.engines.values():
        engine.is_reachable = False
    world.edit({**spec, "maxModelLen": 256})
    watch(world, serving)
    assert len(world.pods(hash_now(world))) == 1
    assert not [entry for entry in world.journal if entry.startswith(("DrainPod", "PatchSettings"))]
    assert world.store.of_kind("ConfigMap") == []

"""The operator ends in the same state whenever it is killed, and whichever way spec came there."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_operator.render import names
from paceline_operator.testing.world import World

Spec = dict[str, Any]


def spec_of(**fields: Any) -> Spec:
    return {"model": {"uri": "demo"}, "drain": {"preStopSeconds": 1}, **fields}


def life() -> list[Callable[[World], None]]:
    """Create, live change, roll-out, revert, scale, failed start, delete and create again."""

    def edit(**fields: Any) -> Callable[[World], None]:
        return lambda world: world.edit(spec_of(**fields))

    def again(world: World) -> None:
        world.delete()
        world.create(spec_of(replicas=1))

    return [
        edit(replicas=2),
        edit(replicas=2, scheduling={"maxNumSeqs": 64}),
        edit(replicas=2, maxModelLen=512),
        edit(replicas=2),
        edit(replicas=3),
        edit(replicas=1),
        edit(replicas=1, dtype="BFloat16"),
        edit(replicas=1, maxModelLen=256),
        again,
    ]


def broken_bfloat16(arguments: list[str]) -> tuple[str, str] | None:
    return ("OutOfMemory", "too big") if "--dtype=BFloat16" in arguments else None


def lived(settle: Callable[[World], None]) -> World:
    world = World(spec_of(replicas=1), load_s=1.0)
    world.breaks = broken_bfloat16
    for act in life():
        act(world)
        for _ in range(4):
            settle(world)
        world.store.collect_garbage()
    world.settle()
    return world


def whole(world: World) -> None:
    world.reconcile()
    world.tick()


@pytest.mark.slow
def test_a_second_reconcile_writes_nothing_at_any_stage_of_a_life() -> None:
    world = World(spec_of(replicas=1), load_s=1.0)
    for act in life()[:6]:
        act(world)
        world.settle()
        assert world.plan().actions == ()


@pytest.mark.slow
def test_an_operator_that_dies_after_each_single_write_ends_where_one_that_lives_does() -> None:
    def one_write(world: World) -> None:
        world.reconcile(at_most=1)
        world.tick()

    assert lived(one_write).shape() == lived(whole).shape()


@pytest.mark.parametrize(
    "step",
    [pytest.param(9, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.full)],
)
def test_a_kill_before_and_after_every_write_converges(step: int) -> None:
    expected = lived(whole).shape()
    total = len(lived(whole).journal)
    for cut in range(0, total, step):
        killed = False

        def settle(world: World, cut: int = cut) -> None:
            nonlocal killed
            left = cut - len(world.journal)
            plan = world.plan()
            if not killed and left < len(plan.actions):
                killed = True
                world.carry_out(plan, at_most=max(0, left))
            else:
                world.carry_out(plan)
            world.tick()

        assert lived(settle).shape() == expected, f"killed before write {cut}"


@pytest.mark.slow
def test_nothing_is_created_twice() -> None:
    world = lived(whole)
    created = [entry for entry in world.journal if entry.startswith("Apply Service")]
    assert len(created) == 2  # once for each of the two objects of this name
    assert len(world.store.of_kind("Service")) == 1


SPECS = st.fixed_dictionaries(
    {"model": st.just({"uri": "demo"}), "drain": st.just({"preStopSeconds": 0})},
    optional={
        "replicas": st.integers(0, 3),
        "maxModelLen": st.sampled_from([128, 256]),
        "objective": st.sampled_from(["Interactive", "FirstToken", "Throughput"]),
        "scheduling": st.fixed_dictionaries(
            {},
            optional={
                "maxNumSeqs": st.sampled_from([16, 300, 700]),
                "maxNumBatchedTokens": st.sampled_from([256, 9000]),
                "policy": st.sampled_from(["Fcfs", "Priority"]),
                "queue": st.just({"maxRequests": 7}),
            },
        ),
        "kvCache": st.fixed_dictionaries(
            {},
            optional={"prefixCaching": st.booleans(), "blockSize": st.sampled_from([16, 32])},
        ),
        "rollout": st.fixed_dictionaries(
            {}, optional={"strategy": st.sampled_from(["Auto", "Surge", "InPlace"])}
        ),
        "slo": st.just({"ttft": {"target": "500ms"}}),
        "resources": st.sampled_from(
            [{"gpus": 1}, {"requests": {"cpu": "1000m"}}, {"requests": {"cpu": 1}}]
        ),
        "tensorParallelSize": st.just(2),
        "service": st.sampled_from([{"port": 9000}, {"type": "NodePort"}]),
        "monitoring": st.just({"podMonitor": {"enabled": False}}),
        "podTemplate": st.just({"labels": {"team": "a"}, "nodeSelector": {"zone": "b"}}),
    },
)


def without_pins(shape: dict[str, Any]) -> dict[str, Any]:
    """Boot maxima that spec leaves out are remembered from the last template on purpose.

    So is what an engine chose by itself, while nobody runs.
    """
    text = copy.deepcopy(shape)
    digests = {key.rpartition("-")[2] for key in text["children"] if key.startswith("Deployment/")}
    assert len(digests) <= 1, "old Deployments are left"
    text["children"] = {
        key.replace(digest, "HASH"): value
        for key, value in text["children"].items()
        for digest in digests or {"none"}
    }
    for key, child in text["children"].items():
        if key.startswith("Deployment/"):
            _forget_boot_flags(child)
    text["pods"] = [is_deleted for _, is_deleted in text["pods"]]
    del text["engines"]
    status = text["status"]
    for gone in ("wantedHash", "capacity", "memoryPlan"):
        status.pop(gone, None)
    status["effective"] = [
        item
        for item in status["effective"]
        if not item["name"].startswith("boot")
        and (status["replicas"] or item["source"] != "Engine")
    ]
    return text


def _forget_boot_flags(child: dict[str, Any]) -> None:
    template = child["spec"]["template"]
    child["spec"]["selector"]["matchLabels"].pop(names.HASH_LABEL)
    template["metadata"]["labels"].pop(names.HASH_LABEL)
    container = template["spec"]["containers"][0]
    container["args"] = [item for item in container["args"] if not item.startswith("--boot")]
    for volume in template["spec"]["volumes"]:
        volume.pop("configMap", None)


def check_a_way_of_edits(edits: list[Spec], rounds: list[int]) -> None:
    final = {**edits[-1]}
    final.pop("tensorParallelSize", None)
    world = World(edits[0], load_s=1.0)
    for number, spec in enumerate([*edits[1:], final]):
        for _ in range(rounds[number] if number < len(rounds) else 3):
            whole(world)
        world.edit(spec)
    world.settle()
    assert world.plan().actions == ()
    fresh = World(final, load_s=1.0)
    fresh.settle()
    assert without_pins(world.shape()) == without_pins(fresh.shape())


WAYS = {"edits": st.lists(SPECS, min_size=2, max_size=4), "rounds": st.lists(st.integers(0, 6))}
UNHURRIED = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.slow
@settings(max_examples=15, **UNHURRIED)
@given(**WAYS)
def test_any_way_of_edits_ends_like_a_fresh_apply(edits: list[Spec], rounds: list[int]) -> None:
    check_a_way_of_edits(edits, rounds)


@pytest.mark.full
@settings(max_examples=250, **UNHURRIED)
@given(**WAYS)
def test_many_ways_of_edits_end_like_a_fresh_apply(edits: list[Spec], rounds: list[int]) -> None:
    check_a_way_of_edits(edits, rounds)

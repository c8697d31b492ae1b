"""A live change reaches every pod once, in order, and replicas stay equal."""

import json
from typing import Any

import pytest

from paceline_operator.decide.actions import PatchSettings
from paceline_operator.render import names
from paceline_operator.resources import objects
from paceline_operator.testing.world import World
from paceline_operator.testing.worlds import settled, spec_of


def with_seqs(number: int, **fields: Any) -> dict[str, Any]:
    return spec_of(scheduling={"maxNumSeqs": number}, **fields)


def revisions(world: World) -> set[int]:
    return {engine.revision for engine in world.engines.values()}


def seqs(world: World) -> set[int]:
    return {engine.settings["maxNumSeqs"] for engine in world.engines.values()}


def recorded(world: World, number: int = 0) -> dict[str, Any]:
    body = world.store.of_kind("ConfigMap")[number]["data"]["settings.json"]
    return dict(json.loads(body))


def ready_message(world: World) -> str:
    return objects.text(objects.condition(world.document, "Ready"), "message")


def test_a_live_change_reaches_pods_without_touching_them() -> None:
    world = settled(replicas=2)
    pods = {objects.uid(pod) for pod in world.pods()}
    world.edit(with_seqs(64, replicas=2))
    world.settle()
    assert seqs(world) == {64}
    assert {objects.uid(pod) for pod in world.pods()} == pods
    assert world.status["settingsRevision"] == {"wanted": 2, "applied": 2}


def test_the_order_is_status_config_map_pods_and_then_applied() -> None:
    world = settled(replicas=2)
    start = len(world.journal)
    world.edit(with_seqs(64, replicas=2))
    world.reconcile()
    assert world.status["settingsRevision"] == {"wanted": 2, "applied": 1}
    assert world.condition("Ready") == ("False", "SettingsPending")
    world.settle()
    steps = [entry.split()[0] for entry in world.journal[start:] if "Event" not in entry]
    assert steps == ["WriteStatus", "Apply", "PatchSettings", "PatchSettings", "WriteStatus"]


def test_a_change_taken_out_of_spec_goes_back() -> None:
    world = settled()
    world.edit(with_seqs(64))
    world.settle()
    world.edit(spec_of())
    world.settle()
    assert seqs(world) == {128}


def test_a_persons_curl_is_put_right_with_a_higher_revision() -> None:
    world = settled(replicas=2)
    engine = next(iter(world.engines.values()))
    engine.patch({"maxNumSeqs": 3}, engine.revision + 1)
    world.settle()
    assert seqs(world) == {128}
    assert revisions(world) == {3}
    assert world.plan().actions == ()


def test_an_equal_revision_with_other_content_is_put_right() -> None:
    world = settled(replicas=2)
    engine = next(iter(world.engines.values()))
    engine.settings["maxNumSeqs"] = 3
    world.settle()
    assert seqs(world) == {128}
    assert revisions(world) == {2}


def test_a_container_that_restarted_on_a_stale_config_map_is_pushed_to() -> None:
    world = settled()
    world.edit(with_seqs(64))
    world.settle()
    (engine,) = world.engines.values()
    engine.settings["maxNumSeqs"], engine.revision = 128, 1
    world.settle()
    assert (engine.settings["maxNumSeqs"], engine.revision) == (64, 2)
    assert world.status["settingsRevision"] == {"wanted": 2, "applied": 2}


def test_a_restored_status_never_blocks_the_operator() -> None:
    world = settled()
    for number in (64, 65, 66):
        world.edit(with_seqs(number))
        world.settle()
    world.document["status"]["settingsRevision"] = {"wanted": 2, "applied": 2}
    world.edit(with_seqs(70))
    world.settle()
    assert seqs(world) == {70}
    assert revisions(world) == {5}


def test_a_new_pod_starts_with_the_settings_of_the_config_map() -> None:
    world = settled()
    world.edit(with_seqs(64))
    world.settle()
    world.edit(with_seqs(64, replicas=2))
    world.settle()
    assert [engine.changes for engine in world.engines.values()][-1] == []
    assert seqs(world) == {64}


def test_pods_of_an_old_template_get_clamped_values_and_do_not_count() -> None:
    world = settled()
    world.load_s = 1000.0
    world.edit(with_seqs(500))
    for _ in range(4):
        world.reconcile()
        world.tick()
    old = [engine for engine in world.engines.values() if engine.ready_at <= world.now]
    assert [engine.settings["maxNumSeqs"] for engine in old] == [256]
    said = sorted(recorded(world, number)["settings"]["maxNumSeqs"] for number in range(2))
    assert said == [256, 500]
    assert world.status["settingsRevision"]["applied"] == 1


def test_pods_that_do_not_agree_within_a_minute_are_told() -> None:
    world = settled()
    world.edit(with_seqs(64))
    plan = world.plan()
    kept = [action for action in plan.actions if not isinstance(action, PatchSettings)]
    for _ in range(2):
        world.reconcile(at_most=len(kept) - 1)
    (engine,) = world.engines.values()
    engine.settings["maxNumSeqs"] = 128
    world.tick(61)
    world.reconcile(at_most=1)
    assert world.condition("Ready") == ("False", "SettingsNotAgreed")
    assert objects.name(world.pods()[0]) in ready_message(world)


def test_an_admin_port_that_does_not_answer_leaves_ready_unknown() -> None:
    world = settled()
    (engine,) = world.engines.values()
    engine.is_reachable = False
    plan = world.reconcile()
    assert world.condition("Ready") == ("Unknown", "AdminUnreachable")
    assert objects.name(world.pods()[0]) in ready_message(world)
    assert world.condition("Available") == ("True", "Serving")
    assert plan.requeue_after_s is not None


def test_an_engine_that_serves_another_model_is_not_ready() -> None:
    world = settled()
    (engine,) = world.engines.values()
    engine.model = "other"
    world.reconcile()
    assert world.condition("Ready") == ("False", "WrongModel")


def test_since_stays_until_value_or_source_change() -> None:
    world = settled()

    def since(name: str) -> Any:
        return next(item["since"] for item in world.status["effective"] if item["name"] == name)

    before = since("maxNumSeqs"), since("watermark")
    world.tick(100)
    world.edit(with_seqs(64))
    world.settle()
    assert since("watermark") == before[1]
    assert since("maxNumSeqs") > before[0]


@pytest.mark.parametrize("digests", [("aa" * 32,), ("bb" * 32, "aa" * 32)])
def test_accepted_admin_tokens_lie_beside_the_settings_as_digests(
    digests: tuple[str, ...],
) -> None:
    world = settled()
    world.admin_token_digests = digests
    world.settle()
    (config_map,) = world.store.of_kind("ConfigMap")
    assert config_map["data"]["admin-token-sha256"].split() == list(digests)
    owner = config_map["metadata"]["ownerReferences"][0]
    assert owner["kind"] == "Deployment"
    assert config_map["metadata"]["labels"][names.HASH_LABEL]


def test_tenants_and_weights_reach_pods_without_touching_them() -> None:
    many = [{"name": f"tenant-{number}", "weight": 1 + number} for number in range(20)]
    world = settled()
    pods = {objects.uid(pod) for pod in world.pods()}
    for revision, tenants in enumerate((many, many[:1], [{"name": "tenant-0", "weight": 9}]), 2):
        world.edit(spec_of(scheduling={"policy": "Fair", "tenants": tenants}))
        world.settle()
        (engine,) = world.engines.values()
        got = [(item["name"], item["weight"]) for item in engine.settings["tenants"]]
        assert got == [(item["name"], item["weight"]) for item in tenants]
        assert engine.settings["schedulingPolicy"] == "Fair"
        assert world.status["settingsRevision"] == {"wanted": revision, "applied": revision}
        assert world.condition("Ready")[0] == "True"
    assert {objects.uid(pod) for pod in world.pods()} == pods
    world.edit(spec_of())
    world.settle()
    (engine,) = world.engines.values()
    assert (engine.settings["tenants"], engine.settings["schedulingPolicy"]) == (None, "Fcfs")
    start = len(world.journal)
    world.settle()
    assert world.journal[start:] == []

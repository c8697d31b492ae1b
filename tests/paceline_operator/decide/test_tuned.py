"""The tuner within a reconcile: intent before deed, read back, taken back, told in status."""

from dataclasses import replace
from typing import Any

import pytest

from paceline_operator.decide.actions import Apply, PatchSettings, WriteStatus
from paceline_operator.decide.observed import Config, Measured
from paceline_operator.decide.tuning import ledger, policy
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.signals import Signal
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.resources import objects, parse
from paceline_operator.resources.parse import Parsed
from paceline_operator.testing.tuned_world import TunedWorld
from paceline_operator.testing.tuner_scenarios import SCENARIOS, TUNING
from paceline_operator.testing.worlds import settled, spec_of

CAP = SCENARIOS[Symptom.CAP_TOO_LOW]


def world_of(**fields: Any) -> TunedWorld:
    spec = spec_of(**{"tuning": TUNING, **CAP.spec, **fields})
    return TunedWorld(spec, CAP.load, CAP.surface)


def until(world: TunedWorld, state: str) -> None:
    for _ in range(400):
        if world.tuning("state") == state:
            return
        world.run(1)
    raise AssertionError(f"never {state}: {world.status.get('tuning')}")


def reasons(world: TunedWorld) -> list[str]:
    return [event.reason for event in world.events]


def test_a_symptom_is_found_a_setting_turned_without_a_new_pod_and_the_story_told() -> None:
    world = world_of()
    world.run(3600)
    assert world.num_pods_made == 1
    assert world.setting("maxNumSeqs") > 128
    assert world.condition("TuningActive")[0] == "True"
    assert world.condition("MetricsAvailable") == ("True", "Measured")
    entry = world.tuning("history")[0]
    assert entry["outcome"] == "Accepted"
    assert float(entry["measuredAfter"]["goodput"]) > float(entry["measuredBefore"]["goodput"])
    told = reasons(world)
    assert told.index("CapTooLow") < told.index("ChangeStarted") < told.index("ChangeAccepted")
    shown = {item["name"]: item for item in world.status["effective"]}["maxNumSeqs"]
    assert (shown["source"], shown["value"]) == ("Tuner", str(world.setting("maxNumSeqs")))
    assert "maxNumSeqs" not in str(world.document["spec"].get("scheduling", {}).keys())


def test_intent_is_in_status_before_anything_is_touched() -> None:
    world = world_of()
    before = world.plan()
    while "ChangeStarted" not in [getattr(action, "reason", "") for action in before.actions]:
        world.carry_out(before)
        world.tick(10)
        before = world.plan()
    kinds = [type(action) for action in before.actions]
    assert kinds[0] is WriteStatus
    assert kinds.index(Apply) > 0
    assert kinds.index(PatchSettings) > kinds.index(Apply)
    intent = before.actions[0]
    assert isinstance(intent, WriteStatus)
    assert intent.status["tuning"]["state"] == "Applying"
    assert intent.status["tuning"]["current"]["setting"] == "maxNumSeqs"
    assert (
        intent.status["settingsRevision"]["wanted"] > intent.status["settingsRevision"]["applied"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_an_operator_that_is_killed_after_so_many_writes_goes_on(kept: int) -> None:
    world = world_of()
    world.run(60)
    for number in range(120):
        plan = world.plan()
        world.carry_out(plan, at_most=kept if number % 3 else None)
        world.tick(world._pause(plan))
    assert world.tuning("history")
    assert {item["outcome"] for item in world.tuning("history")} <= {"Accepted", "RolledBack"}
    for _ in range(5):
        world.run(1)
    overlaid = {item["name"]: item["value"] for item in world.tuning("overlay") or []}
    assert str(world.setting("maxNumSeqs")) == overlaid.get("maxNumSeqs", "128")


def test_a_change_that_does_harm_is_taken_back_on_every_pod() -> None:
    world = world_of(replicas=2)
    until(world, "Settling")
    assert {engine.settings["maxNumSeqs"] for engine in world.engines.values()} == {256}
    slow = world.surface
    world.surface = replace(slow, base_s=slow.base_s * 3, per_seq_s=slow.per_seq_s * 3)
    while not world.tuning("history"):
        world.run(10)
    assert world.tuning("history")[0]["outcome"] == "RolledBack"
    assert {engine.settings["maxNumSeqs"] for engine in world.engines.values()} == {128}
    assert world.tuning("overlay") is None
    assert "ChangeRolledBack" in reasons(world)


def test_a_quiet_deployment_is_written_once_a_window_at_most() -> None:
    world = world_of()
    world.load = replace(world.load, clients=4)
    world.run(1200)
    writes = world.journal.count("WriteStatus LLMDeployment/status")
    world.run(1200)
    assert world.journal.count("WriteStatus LLMDeployment/status") - writes <= 10
    world.reconcile()
    assert not world.plan().actions


def test_without_prometheus_nothing_is_tuned_and_the_condition_says_so() -> None:
    world = settled()
    assert world.condition("MetricsAvailable") == ("Unknown", "NotConfigured")
    assert world.condition("TuningActive") == ("False", "NotConfigured")


def test_slow_scrapes_are_a_condition_and_an_event() -> None:
    world = world_of(tuning={**TUNING, "window": "30s"})

    def slowed(measured: Measured) -> Measured:
        samples = tuple(
            replace(item, values={**item.values, Signal.SCRAPES: 2.0}) for item in measured.samples
        )
        return replace(measured, samples=samples)

    world.tamper = slowed
    world.run(600)
    assert world.condition("MetricsAvailable") == ("False", "ScrapeTooSlow")
    assert reasons(world).count("ScrapeTooSlow") == 1
    assert "four scrapes" in objects.text(
        objects.condition(world.document, "MetricsAvailable"), "message"
    )


def test_a_prometheus_that_is_away_freezes_and_is_told() -> None:
    world = world_of()
    world.tamper = lambda _: Measured(lack="PrometheusUnreachable", text="no route")
    world.run(600)
    assert world.condition("MetricsAvailable") == ("False", "PrometheusUnreachable")
    assert world.tuning("state") == "Frozen"
    assert world.setting("maxNumSeqs") == 128


def test_without_a_warm_pod_nothing_is_said_to_be_measured() -> None:
    world = world_of(replicas=0)
    world.run(600)
    assert world.tuning("seenUntil")
    assert world.condition("MetricsAvailable") == ("Unknown", "NoWarmPods")
    assert "NoWarmPods" not in reasons(world)


def test_targets_that_are_missed_are_a_condition_with_figures() -> None:
    symptom = SCENARIOS[Symptom.SPIKY_STREAMS]
    spec = spec_of(**{**symptom.spec, "tuning": {**TUNING, "mode": "Observe"}})
    world = TunedWorld(spec, symptom.load, symptom.surface)
    world.run(1200)
    assert world.condition("SLOMet") == ("False", "TargetMissed")
    assert "itl" in objects.text(objects.condition(world.document, "SLOMet"), "message")


def test_annotations_approve_reject_and_freeze() -> None:
    world = world_of(tuning={**TUNING, "mode": "Propose"})
    until(world, "Proposed")
    annotations = world.document["metadata"].setdefault("annotations", {})
    annotations["paceline.dev/freeze"] = "true"
    annotations["paceline.dev/approve"] = world.tuning("current", "id")
    world.run(300)
    assert world.setting("maxNumSeqs") == 128
    assert (world.tuning("state"), world.tuning("reason")) == ("Proposed", "Frozen")
    assert "which waits: the annotation paceline.dev/freeze is set" in world.tuning("message")
    annotations["paceline.dev/freeze"] = "false"
    world.run(300)
    assert world.setting("maxNumSeqs") == 256
    assert any("llmdep demo paceline.dev/approve" in event.message for event in world.events)


def test_the_operator_wide_freeze_and_cap_stop_new_changes() -> None:
    world = world_of()
    world.config = Config(known_kinds=frozenset({"PodMonitor"}), is_tuning_frozen=True)
    world.run(1800)
    assert (world.tuning("state"), world.tuning("reason")) == ("Frozen", "OperatorFrozen")
    world.config = Config(known_kinds=frozenset({"PodMonitor"}), max_changing=0)
    world.run(900)
    assert world.tuning("reason") == "TooManyAtOnce"
    assert world.setting("maxNumSeqs") == 128


def test_spec_wins_over_the_overlay_once_a_person_sets_the_field() -> None:
    world = world_of()
    world.run(3600)
    assert world.tuning("overlay")
    world.edit(spec_of(tuning=TUNING, scheduling={**CAP.spec["scheduling"], "maxNumSeqs": 100}))
    world.run(60)
    assert world.setting("maxNumSeqs") == 100
    assert not [item for item in world.tuning("overlay") or [] if item["name"] == "maxNumSeqs"]


def test_pods_of_another_template_are_not_asked_about() -> None:
    world = world_of()
    world.run(1200)
    counted = {name for question in world.asked for name in question.pods}
    assert counted == set(world.engines)


STARVED = SCENARIOS[Symptom.KV_PRESSURE]
ALWAYS = [{"name": "always", "start": "00:00", "duration": "24h"}]


def vllm_world(**fields: Any) -> TunedWorld:
    spec = spec_of(**{**STARVED.spec, "model": {"uri": "hf://a/b"}, "runtime": "VLLM", **fields})
    return TunedWorld(spec, STARVED.load, STARVED.surface)


def test_of_stock_vllm_only_what_it_has_a_flag_for_is_recommended() -> None:
    world = vllm_world(tuning=TUNING)
    world.run(1500)
    advice = world.tuning("recommendations")[0]
    assert advice["symptom"] == "KvPressure"
    assert advice["change"].startswith("spec.scheduling.maxNumSeqs: ")
    assert "replaces the pods" in advice["text"]
    assert world.tuning("current") is None
    assert world.num_pods_made == 1


def test_stock_vllm_with_targets_is_never_turned_since_nobody_counts_who_met_them() -> None:
    rules = {**TUNING, "mode": "Auto", "allowRestart": True, "maintenanceWindows": ALWAYS}
    world = vllm_world(tuning=rules, slo={"itl": {"target": "60ms"}})
    world.run(1500)
    assert "ChangeStarted" not in reasons(world)
    assert "within slo" in world.tuning("recommendations")[0]["text"]
    assert world.num_pods_made == 1


def test_a_change_of_stock_vllm_is_one_that_replaces_pods() -> None:
    parsed = parse.parse(vllm_world(tuning=TUNING).document)
    assert isinstance(parsed, Parsed)
    rules = policy.of_spec(parsed.deployment.spec)
    assert ledger.is_restart("maxNumSeqs", rules)
    assert not ledger.is_restart("maxNumSeqs", Policy())


def test_a_window_in_which_pods_came_is_no_part_of_a_measurement() -> None:
    world = world_of(tuning={**TUNING, "minRequests": 1_000_000, "mode": "Observe"})
    world.run(1200)
    read, counted = objects.seconds(world.tuning("seenUntil")) or 0.0, world.tuning("growing")
    world.edit({**world.document["spec"], "replicas": 2})
    world.run(600)
    assert world.tuning("servingPods") == 2
    num_read = ((objects.seconds(world.tuning("seenUntil")) or 0.0) - read) / 120
    assert world.tuning("growing", "windows") - counted["windows"] < num_read

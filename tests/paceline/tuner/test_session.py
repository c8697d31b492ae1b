"""The tuner of one deployment without a cluster: readings and samples in, orders out."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from paceline.tuner.session import Controls, Order, Reading, Session
from paceline_crds.settings import EngineSettings
from paceline_operator.decide.tuning.observation import Fleet, Note
from paceline_operator.decide.tuning.signals import Sample, Window
from paceline_operator.decide.tuning.state import Phase
from paceline_operator.testing import surface as surfaces
from paceline_operator.testing.surface import Knobs, Load, Surface
from paceline_operator.testing.tuner_scenarios import spec_of

START = 1_800_000_000
LOAD = Load(clients=400, prompt=200, output=200)
"""More clients than places, and a cache that is nearly empty: maxNumSeqs has to go up."""
TUNING = {"minRequests": 500, "cooldown": "1m"}


class Rig:
    """Engines that are a formula, driven as `paceline run` drives its replicas."""

    def __init__(self, num_engines: int = 1, **spec: Any) -> None:
        self.session = Session(
            spec_of(**{"scheduling": {"bootMaxNumSeqs": 512}, "tuning": TUNING, **spec})
        )
        started = EngineSettings(boot_max_num_seqs=512).booted().on_border()
        self.engines = {str(index): (0, dict(started)) for index in range(num_engines)}
        self.fleet = Fleet(replicas=num_engines, num_pods=num_engines, num_ready=num_engines)
        self.controls = Controls()
        self.notes: list[Note] = []
        self.random = Random(1)
        self.now = START
        self.is_deaf = False

    def readings(self) -> list[Reading]:
        return [
            Reading(engine=name, revision=revision, settings=dict(settings))
            for name, (revision, settings) in self.engines.items()
        ][: self.fleet.num_ready]

    def turn(self) -> list[Order]:
        self.now += 30
        samples = [self._sample(window) for window in self.session.due(self.now)]
        said = self.readings()
        self.notes += self.session.turn(said, samples, self.fleet, self.now, self.controls)
        orders = self.session.orders(said)
        for order in () if self.is_deaf else orders:
            revision, settings = self.engines[order.engine]
            assert order.revision >= revision
            self.engines[order.engine] = order.revision, {**settings, **order.changes}
        return orders

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()

    def until(self, phase: Phase) -> None:
        for _ in range(200):
            if self.session.state.mood == phase.value:
                return
            self.turn()
        raise AssertionError(f"never {phase}: {self.session.state.mood}")

    def setting(self, name: str, engine: str = "0") -> Any:
        return self.engines[engine][1][name]

    def reasons(self) -> list[str]:
        return [note.reason for note in self.notes]

    def _sample(self, window: Window) -> Sample:
        knobs = Knobs(
            seqs=self.setting("maxNumSeqs"),
            budget=self.setting("maxNumBatchedTokens"),
            long_cap=self.setting("maxNumBatchedTokens") / 2,
        )
        roomy, rules = Surface(kv_tokens=1_000_000), self.session.policy
        found = surfaces.point(roomy, knobs, LOAD, rules)
        return surfaces.sample(roomy, found, LOAD, rules, window, ("0",), self.random)


def test_the_same_machine_turns_a_setting_and_keeps_it() -> None:
    rig = Rig()
    rig.run(120)
    assert "ChangeAccepted" in rig.reasons()
    assert rig.setting("maxNumSeqs") > 128
    assert ("spec.scheduling.maxNumSeqs", str(rig.setting("maxNumSeqs"))) in rig.session.kept()


def test_every_replica_is_told_with_one_revision_and_again_if_it_forgot() -> None:
    rig = Rig(num_engines=2)
    rig.until(Phase.SETTLING)
    assert rig.engines["0"] == rig.engines["1"]
    before = rig.engines["0"]
    started = EngineSettings(boot_max_num_seqs=512).booted().on_border()
    rig.engines["1"] = (before[0], dict(started))
    assert [order.engine for order in rig.turn()] == ["1"]
    assert rig.engines["0"] == rig.engines["1"] == before


def test_nothing_is_turned_while_an_engine_is_down() -> None:
    rig = Rig(num_engines=2)
    rig.fleet = replace(rig.fleet, num_ready=1)
    rig.run(60)
    assert rig.session.state.reason == "PodsNotReady"
    assert rig.setting("maxNumSeqs") == 128


def test_a_session_begins_with_the_first_engine_that_answers() -> None:
    rig = Rig()
    assert rig.session.turn([], [], rig.fleet, START) == ()
    assert rig.session.orders([]) == []


def test_what_a_person_sets_by_hand_stays_and_is_not_turned() -> None:
    rig = Rig()
    rig.until(Phase.VERIFYING)
    revision, settings = rig.engines["0"]
    rig.engines["0"] = (revision + 1, {**settings, "maxNumSeqs": 200})
    rig.run(30)
    assert rig.setting("maxNumSeqs") == 200
    assert "ChangeSuperseded" in rig.reasons()
    assert any("spec.scheduling.maxNumSeqs: 4" in item.change for item in rig.session.state.advice)


def test_a_target_that_is_changed_live_is_the_one_that_counts() -> None:
    rig = Rig(slo={"itl": {"target": "500ms", "attainment": "0.9"}})
    revision, settings = rig.engines["0"]
    rig.engines["0"] = (revision, {**settings, "sloItlMs": 500})
    rig.turn()
    assert rig.session.policy.targets["itl"].limit_s == 0.5
    rig.engines["0"] = (revision + 1, {**settings, "sloItlMs": 50})
    rig.turn()
    target = rig.session.policy.targets["itl"]
    assert (target.limit_s, target.attainment) == (0.05, 0.9)


def test_engines_that_do_not_take_a_change_up_get_the_old_settings_back() -> None:
    rig = Rig()
    rig.is_deaf = True
    rig.until(Phase.ROLLING_BACK)
    rig.is_deaf = False
    rig.run(2)
    assert "ChangeRolledBack" in rig.reasons()
    assert rig.setting("maxNumSeqs") == 128
    assert rig.session.orders(rig.readings()) == []


def test_engines_that_refuse_a_change_have_what_its_roll_back_wants() -> None:
    rig = Rig()
    rig.is_deaf = True
    rig.until(Phase.ROLLING_BACK)
    rig.run(2)
    assert "ChangeRolledBack" in rig.reasons()
    assert rig.session.state.mood != "Halted"


def test_a_frozen_session_turns_nothing_and_takes_back_what_is_in_flight() -> None:
    rig = Rig()
    rig.until(Phase.VERIFYING)
    rig.controls = Controls(is_frozen=True)
    rig.run(4)
    assert rig.setting("maxNumSeqs") == 128
    assert rig.session.state.reason == "Frozen"


@pytest.mark.parametrize("word", ["approve", "reject"])
def test_a_proposal_waits_for_a_person(word: str) -> None:
    rig = Rig(tuning={**TUNING, "mode": "Propose"})
    rig.until(Phase.PROPOSED)
    rig.run(3)
    assert rig.setting("maxNumSeqs") == 128
    asked = [note.asks_for for note in rig.notes if note.asks_for]
    rig.controls = Controls(**{word: asked[-1]})
    rig.run(10)
    assert (rig.setting("maxNumSeqs") > 128) is (word == "approve")
    assert (f"Proposal{word.title()}ed" in rig.reasons()) is (word == "reject")


def test_a_window_holds_enough_scrapes_whatever_its_length() -> None:
    short = Rig(tuning={**TUNING, "window": "10s"}).session.policy
    assert short.window_s / short.scrape_s == 8
    assert Rig().session.policy.scrape_s == 15


def test_the_state_reads_as_a_cluster_would_show_it() -> None:
    from paceline_operator.decide.tuning import codec

    rig = Rig()
    rig.until(Phase.VERIFYING)
    text = json.dumps(codec.encode(rig.session.state))
    assert codec.decode(json.loads(text)) == rig.session.state

"""Guard-rails over the simulator: each stops what would be wrong on a real scheduler, too."""

from dataclasses import dataclass, replace

import pytest
from numpy.random import default_rng

from paceline.tuner.scenarios import MACHINE, SCENARIOS, TUNING, Scenario, Shape
from paceline.tuner.session import Controls
from paceline.tuner.simulated import SimulatedTuning
from paceline_engine.core.step_features import StepFeatures
from paceline_engine.sim.arrivals import Arrivals, OpenLoop
from paceline_engine.sim.requests import SimRequest
from paceline_operator.decide.tuning.observation import Fleet
from paceline_operator.decide.tuning.state import Outcome, Phase, State
from paceline_operator.decide.tuning.symptom import Symptom

pytestmark = pytest.mark.slow

CAP = SCENARIOS[Symptom.CAP_TOO_LOW]
LIMIT_S = 300.0


def tuning(scenario: Scenario = CAP, **spec: object) -> SimulatedTuning:
    return SimulatedTuning(spec=scenario.manifest(**spec), engine=scenario.engine())


def has_ended(state: State) -> bool:
    return bool(state.history)


def is_verifying(state: State) -> bool:
    return state.mood == Phase.VERIFYING.value


def max_num_seqs(rig: SimulatedTuning) -> int:
    return rig.engine.settings.max_num_seqs


def test_a_bound_is_never_crossed_and_a_pinned_setting_not_touched() -> None:
    bounded = tuning(tuning={**TUNING, "bounds": {"maxNumSeqs": {"max": 12}}})
    bounded.run(240)
    assert max_num_seqs(bounded) == 12
    assert "Exhausted" in bounded.reasons()
    pinned = tuning(tuning=TUNING)
    pinned.run(120)
    assert max_num_seqs(pinned) == 8


@dataclass(frozen=True)
class Cliff:
    """A machine that takes four times as long for a step with more than eight requests."""

    def predict_ms(self, sizes: StepFeatures) -> float:
        return MACHINE.predict_ms(sizes) * (4 if sizes.num_rows > 8 else 1)


def test_a_harmful_change_is_taken_back_and_not_repeated() -> None:
    rig = tuning(replace(CAP, machine=Cliff()))
    rig.run(2 * LIMIT_S)
    changed = [item for item in rig.state.history if item.setting == "maxNumSeqs"]
    assert [item.outcome for item in changed] == [Outcome.ROLLED_BACK]
    assert changed[0].measured_after["goodput"] < changed[0].measured_before["goodput"]
    assert max_num_seqs(rig) == 8


def test_a_loss_of_a_targets_attainment_is_taken_back_before_the_arm_is_full() -> None:
    tuned = {**CAP.spec["tuning"], "minRequests": 1000}
    spec = {**CAP.spec, "slo": {"itl": {"target": "100ms"}}, "tuning": tuned}
    rig = tuning(replace(CAP, machine=Cliff(), spec=spec))
    rig.run(2 * LIMIT_S, stop=has_ended)
    ended = rig.state.history[0]
    assert "attainment" in ended.reason
    assert "fell by" in ended.reason
    assert ended.measured_after["requests"] < 1000


class Changing:
    """A load, and another one from a moment on."""

    def __init__(self, first: Arrivals, second: Arrivals) -> None:
        self.first, self.second, self.has_changed = first, second, False

    @property
    def next_s(self) -> float | None:
        return self._now.next_s

    def pop(self) -> SimRequest:
        return self._now.pop()

    def ended(self, now: float) -> None:
        self._now.ended(now)

    @property
    def _now(self) -> Arrivals:
        return self.second if self.has_changed else self.first


def test_a_load_that_changes_in_the_middle_gives_no_verdict_on_unequal_arms() -> None:
    other = Shape(rate=3.0, prompt=(200, 300), output=(30, 40))
    later = OpenLoop(other.requests(default_rng(9), start_s=LIMIT_S))
    load = Changing(CAP.shape.arrivals(default_rng(1)), later)
    spec = CAP.manifest(tuning={**CAP.spec["tuning"], "minRequests": 1000})
    rig = SimulatedTuning(spec=spec, engine=CAP.engine(arrivals=load))
    rig.run(LIMIT_S, stop=is_verifying)
    assert is_verifying(rig.state)
    load.has_changed = True
    rig.run(2 * LIMIT_S)
    assert not any(item.outcome is Outcome.ACCEPTED for item in rig.state.history)


def test_too_little_traffic_turns_nothing() -> None:
    rig = tuning(tuning={**CAP.spec["tuning"], "minRequests": 1_000_000})
    rig.run(120)
    assert rig.num_changes == 0
    assert rig.state.reason == "LowTraffic"


def test_a_crash_during_a_change_takes_it_back_and_bans_the_move() -> None:
    rig = tuning()
    rig.run(LIMIT_S, stop=is_verifying)
    rig.fault = lambda fleet, _: replace(fleet, crashes=1)
    rig.run(rig.engine.now + 30)
    assert rig.state.history[-1].outcome is Outcome.ROLLED_BACK
    assert "crashed" in rig.state.history[-1].reason
    assert [ban.setting for ban in rig.state.bans] == ["maxNumSeqs"]
    assert max_num_seqs(rig) == 8


def test_an_engine_that_is_down_is_not_tuned() -> None:
    rig = tuning()
    rig.run(20)
    rig.fault = lambda _fleet, _at: Fleet(num_ready=0)
    rig.run(120)
    assert rig.num_changes == 0
    assert rig.state.reason == "PodsNotReady"


def test_an_engine_that_takes_no_change_up_gets_none() -> None:
    rig = tuning()
    rig.is_deaf = True
    rig.run(LIMIT_S, stop=has_ended)
    assert rig.state.history[-1].outcome is Outcome.ROLLED_BACK
    assert "not every pod" in rig.state.history[-1].reason


def test_a_freeze_takes_the_change_in_flight_back_and_keeps_what_was_accepted() -> None:
    rig = tuning()
    rig.run(LIMIT_S, stop=lambda state: has_ended(state) and is_verifying(state))
    kept = rig.state.history[0].after
    rig.controls = lambda _: Controls(is_frozen=True)
    rig.run(rig.engine.now + 30)
    assert rig.state.reason == "Frozen"
    assert str(max_num_seqs(rig)) == kept


def test_a_cooldown_and_a_days_budget_are_kept() -> None:
    patient = tuning(tuning={**CAP.spec["tuning"], "cooldown": "1h"})
    patient.run(LIMIT_S)
    assert patient.num_changes == 1
    thrifty = tuning()
    thrifty.session.policy = replace(thrifty.session.policy, live_budget=2)
    thrifty.run(LIMIT_S)
    assert thrifty.num_changes == 2
    assert 0 < thrifty.settled_s < LIMIT_S

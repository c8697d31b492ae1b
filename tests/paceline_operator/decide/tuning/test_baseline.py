"""What a change is compared with: one load, the pods that are there, and not too long ago."""

from dataclasses import replace

import pytest

from paceline_operator.decide.tuning import absorb
from paceline_operator.decide.tuning.observation import Fleet, Observation
from paceline_operator.decide.tuning.policy import Policy, Target
from paceline_operator.decide.tuning.signals import Signal
from paceline_operator.decide.tuning.state import Change, Outcome, Phase, State
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing.samples import sample
from paceline_operator.testing.surface import Load
from paceline_operator.testing.tuner_rig import START
from paceline_operator.testing.tuner_scenarios import SCENARIOS, TUNING, rig_of

RULES = Policy(targets={"itl": Target(limit_s=0.1)}, min_requests=60_000)
BEGAN = sample().window.start


def test_a_load_that_came_after_the_baseline_is_measured_before_anything_is_turned() -> None:
    rig = rig_of(SCENARIOS[Symptom.CAP_TOO_LOW], tuning={**TUNING, "minRequests": 1200})
    light, heavy = Load(rate=4, prompt=200, output=200), Load(clients=400, prompt=400, output=1500)
    came = 720  # with the third window of the first load, which makes a baseline
    rig.load = lambda at: light if at < came else heavy
    while "ChangeStarted" not in [note.reason for note in rig.notes]:
        rig.turn()
    assert rig.state.current is not None
    assert rig.state.current.baseline.start >= START + came
    rig.run(1.5)
    assert rig.state.history[0].outcome is Outcome.ACCEPTED


def turned(state: State, index: int, late_s: int = 0, **fleet: int) -> State:
    """The state once a window has been read, so long after its end, with such a fleet."""
    one = sample(index=index)
    seen = Observation(policy=RULES, dials={}, samples=(one,), fleet=replace(Fleet(), **fleet))
    return absorb.absorbed(absorb.scaled(state, seen, one.window.end + late_s), seen)


@pytest.mark.parametrize(
    "fleet",
    [{"num_ready": 2}, {"num_ready": 3, "num_others": 1}, {"num_ready": 0, "num_others": 1}],
)
def test_windows_in_which_pods_came_or_went_are_left_out_and_the_baseline_goes_on(
    fleet: dict[str, int],
) -> None:
    state = turned(State(), 0, num_ready=2, num_others=1)
    state = turned(state, 1, num_ready=2, num_others=1)
    assert (state.growing.windows, state.serving_since) == (2, 0)
    state = turned(state, 2, **fleet)
    assert (state.growing.windows, state.seen_until) == (2, BEGAN + 3 * 120)
    state = turned(state, 4, **fleet)
    assert (state.growing.windows, state.growing.good) == (3, 1800)


def test_a_window_that_had_begun_when_the_change_was_seen_is_left_out_too() -> None:
    state = turned(turned(State(), 0), 1, late_s=30, num_ready=2)
    assert state.serving_since == BEGAN + 2 * 120 + 30
    assert turned(state, 2, num_ready=2).growing.windows == 1
    assert turned(state, 3, num_ready=2).growing.windows == 2


def test_they_show_no_symptom() -> None:
    full = sample({Signal.KV_USAGE_P95: 0.99, Signal.PREEMPTIONS: 600})
    for since, shown in ((0, True), (full.window.end, False)):
        state = replace(State(), serving=1, serving_since=since)
        seen = Observation(policy=RULES, dials={}, samples=(full,))
        found = absorb.absorbed(state, seen).symptoms
        assert (Symptom.KV_PRESSURE in {item.symptom for item in found if item.shown}) is shown


def test_they_are_left_out_of_a_verification_which_goes_on() -> None:
    change = Change(
        id="maxNumSeqs-32-1",
        setting="maxNumSeqs",
        before="40",
        after="32",
        symptom=Symptom.SLOW_STREAMS,
        phase=Phase.VERIFYING,
        started=BEGAN,
        phase_since=BEGAN,
    )
    state = turned(replace(State(), current=change), 0)
    state = turned(state, 1, num_ready=2)
    state = turned(state, 3, num_ready=2)
    assert state.current is not None
    assert state.current.measured.windows == 2


def test_the_first_look_knows_of_no_change() -> None:
    state = turned(State(), 0, num_ready=3)
    assert (state.serving, state.serving_since, state.growing.windows) == (3, 0, 1)

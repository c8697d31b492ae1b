"""A change from its start to its end: what it is judged by, and what is remembered against it."""

from dataclasses import replace

import pytest

from paceline_operator.decide.tuning import arm as arms
from paceline_operator.decide.tuning import flight
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.observation import Observation
from paceline_operator.decide.tuning.policy import Policy, Target
from paceline_operator.decide.tuning.signals import Signal
from paceline_operator.decide.tuning.state import Change, Outcome, Phase, State
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing.samples import sample
from paceline_operator.testing.surface import Load
from paceline_operator.testing.tuner_scenarios import SCENARIOS, rig_of

RULES = Policy(targets={"itl": Target(limit_s=0.1)}, min_requests=500)
NOW = sample().window.end
SEEN = Observation(policy=RULES, dials={})


def arm(windows: int, **changed: float) -> Arm:
    made = Arm()
    for index in range(windows):
        one = sample({Signal(name): value for name, value in changed.items()}, index=index)
        made = arms.extended(made, one, has_targets=True)
    return made


def in_flight(phase: Phase, **changed: object) -> Change:
    made = Change(
        id="maxNumSeqs-32-1",
        setting="maxNumSeqs",
        before="40",
        after="32",
        symptom=Symptom.SLOW_STREAMS,
        phase=phase,
        started=NOW,
        phase_since=NOW,
        load_bin="r8-p9-o7",
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def advanced(change: Change, after_s: int = 0) -> State:
    state = replace(State(), current=change)
    return flight.advance(state, change, SEEN, None, NOW + after_s)[0]


@pytest.mark.parametrize(
    "cause",
    ["Crashed", "OutOfMemory", "Alarm", "NotAgreed", "NoVerdict", "Worse", "NoImprovement"],
)
def test_what_speaks_against_a_move_is_remembered_against_it(cause: str) -> None:
    state = advanced(in_flight(Phase.ROLLING_BACK, verdict=cause))
    assert state.history[-1].outcome is Outcome.ROLLED_BACK
    assert [ban.setting for ban in state.bans] == ["maxNumSeqs"]
    assert state.spent.rollbacks == 1


@pytest.mark.parametrize(
    "cause", ["SpecChanged", "ModeChanged", "Paused", "Frozen", "OperatorFrozen", "RollingOut"]
)
def test_what_came_from_outside_is_not(cause: str) -> None:
    state = advanced(in_flight(Phase.ROLLING_BACK, verdict=cause))
    assert state.history[-1].outcome is Outcome.ROLLED_BACK
    assert (state.bans, state.spent.rollbacks) == ((), 0)


def test_what_was_measured_while_it_settled_is_not_what_it_is_judged_by() -> None:
    change = in_flight(Phase.SETTLING, measured=arm(3))
    still = advanced(change, RULES.window_s - 1).current
    assert still == change
    verifying = advanced(change, RULES.window_s).current
    assert verifying is not None
    assert (verifying.phase, verifying.measured) == (Phase.VERIFYING, Arm())


def test_an_unclear_comparison_goes_on_and_ends_in_a_roll_back() -> None:
    short = in_flight(Phase.VERIFYING, baseline=arm(3), measured=arm(8))
    assert advanced(short).current == short
    late = advanced(short, RULES.max_arm_s + 1).current
    drawn_out = advanced(replace(short, measured=arm(9))).current
    for ended in (late, drawn_out):
        assert ended is not None
        assert (ended.phase, ended.verdict) == (Phase.ROLLING_BACK, "NoImprovement")


def test_a_worse_one_goes_back_at_once() -> None:
    change = in_flight(Phase.VERIFYING, baseline=arm(3), measured=arm(3, good=575))
    ended = advanced(change).current
    assert ended is not None
    assert (ended.phase, ended.verdict) == (Phase.ROLLING_BACK, "Worse")


def test_a_load_that_was_another_one_for_a_while_does_not_spoil_the_comparison() -> None:
    rig = rig_of(SCENARIOS[Symptom.CAP_TOO_LOW])
    usual = SCENARIOS[Symptom.CAP_TOO_LOW].load
    while rig.state.mood != "Verifying":
        rig.turn()
    rig.load = lambda _: Load(clients=400, prompt=900, output=50)
    rig.run(0.3)
    assert rig.state.mood == "Verifying"
    rig.load = lambda _: usual
    rig.run(0.5)
    assert rig.state.history[0].outcome is Outcome.ACCEPTED

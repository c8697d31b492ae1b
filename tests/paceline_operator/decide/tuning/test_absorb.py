"""New windows make the arm that a change is compared with, and only a steady one may be that."""

from dataclasses import replace

import pytest

from paceline_operator.decide.tuning import absorb, guards, ledger
from paceline_operator.decide.tuning.observation import Observation
from paceline_operator.decide.tuning.policy import Policy, Target
from paceline_operator.decide.tuning.signals import Signal
from paceline_operator.decide.tuning.state import Change, Phase, State
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing.samples import sample

RULES = Policy(targets={"itl": Target(limit_s=0.1)}, min_requests=600, live_cooldown_s=0)
CALM, WILD = (500.0, 510.0, 490.0), (300.0, 580.0, 300.0)


def seen(good: tuple[float, ...], first: int = 0) -> Observation:
    samples = tuple(
        sample({Signal.GOOD: value}, index=index) for index, value in enumerate(good, first)
    )
    return Observation(policy=RULES, dials={}, samples=samples)


def test_steady_windows_are_a_baseline_as_soon_as_it_is_full() -> None:
    state = absorb.absorbed(State(), seen(CALM))
    assert (state.baseline.windows, state.growing.windows) == (3, 0)


@pytest.mark.parametrize("crossing", [Signal.RESTARTS, Signal.SLO_CHANGES])
def test_a_window_that_crosses_a_restart_or_other_targets_is_left_out_and_the_arm_goes_on(
    crossing: Signal,
) -> None:
    middle = sample({Signal.GOOD: 0.0, crossing: 1}, index=1)
    samples = (sample(index=0), middle, sample(index=2))
    state = absorb.absorbed(State(), Observation(policy=RULES, dials={}, samples=samples))
    assert (state.growing.windows, state.growing.good) == (2, 1200)
    assert (state.lack, state.seen_until) == ("", samples[-1].window.end)


def test_a_window_counts_once_though_it_is_read_again() -> None:
    state = absorb.absorbed(State(), seen(CALM[:2]))
    again = absorb.absorbed(state, seen(CALM[:2]))
    assert again == state


def test_windows_that_differ_go_on_and_say_so() -> None:
    state = absorb.absorbed(State(), seen(WILD))
    assert (state.baseline.windows, state.growing.windows) == (0, 3)
    found = guards.patience(state, seen(()), state.seen_until)
    assert found is not None
    assert (found.reason, found.freezes) == ("Measuring", False)
    assert found.message.startswith("3 windows differ by too much")
    state = absorb.absorbed(state, seen(WILD * 2, first=3))
    assert (state.baseline.windows, state.growing.windows) == (9, 0)


def test_what_a_kept_change_was_judged_by_goes_on_where_its_windows_differ() -> None:
    calm = absorb.absorbed(State(), seen(CALM)).baseline
    wild = absorb.absorbed(State(), seen(WILD)).growing
    change = Change(
        id="maxNumSeqs-32-1",
        setting="maxNumSeqs",
        before="40",
        after="32",
        symptom=Symptom.SLOW_STREAMS,
        phase=Phase.VERIFYING,
        started=0,
        phase_since=0,
    )
    for measured, growing in ((calm, 0), (wild, 3)):
        kept = ledger.accepted(State(), replace(change, measured=measured), "", RULES, 1000)
        assert (kept.baseline, kept.growing.windows) == (measured, growing)


@pytest.mark.parametrize("phase", [Phase.SETTLING, Phase.VERIFYING])
def test_windows_that_began_before_a_phase_are_no_part_of_what_it_measures(phase: Phase) -> None:
    began = sample(index=1).window.start + 1
    change = Change(
        id="maxNumSeqs-32-1",
        setting="maxNumSeqs",
        before="40",
        after="32",
        symptom=Symptom.SLOW_STREAMS,
        phase=phase,
        started=began,
        phase_since=began,
    )
    state = absorb.absorbed(State(current=change), seen(CALM))
    assert state.current is not None
    assert state.current.measured.windows == 1


def test_an_arm_that_is_not_full_within_its_time_begins_anew() -> None:
    rules = replace(RULES, min_requests=60_000, max_arm_s=600)
    state = State()
    for index, windows in enumerate((1, 2, 3, 4, 5, 0, 1)):
        one = Observation(policy=rules, dials={}, samples=(sample(index=index),))
        state = absorb.absorbed(state, one)
        assert state.growing.windows == windows

"""What holds on every trace: bounds, one change at a time, an end, no cycle, no harm."""

import re
from dataclasses import replace

import pytest

from paceline_operator.decide.tuning.state import Ended, Mood, Outcome, State
from paceline_operator.testing import surface as surfaces
from paceline_operator.testing.tuner_rig import START, TunerRig, is_in_flight
from paceline_operator.testing.tuner_scenarios import SCENARIOS, rig_of
from paceline_operator.testing.tuner_traces import CALM_TURNS, TURNS, Trace, trace

NUM_TROUBLED, NUM_CALM = 600, 400


def overlay(state: State) -> dict[str, str]:
    return {item.name: item.value for item in state.overlay}


def turn(made: Trace) -> None:
    """One turn, and what has to hold after each."""
    before = made.rig.state
    made.rig.turn()
    after = made.rig.state
    old, new = overlay(before), overlay(after)
    changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    changes = {item.setting for item in (before.current, after.current) if item}
    assert changed <= changes, "only the change in flight moves the overlay"
    if before.current and after.current and before.current.id != after.current.id:
        assert not is_in_flight(before) or len(after.history) > 0
    assert len(changed) <= 1 or len(after.history) > len(before.history)
    _, dials = made.rig.laid_over(())
    for name, value in new.items():
        assert dials[name].least <= float(value) <= dials[name].most, (name, value)


def assert_it_ended(made: Trace) -> None:
    state = made.rig.state
    assert not is_in_flight(state)
    assert state.mood in set(Mood) or state.mood == "Proposed"
    assert overlay(state) == made.rig.in_force
    kept: dict[str, str] = {}
    for item in state.history:
        if item.outcome is Outcome.ACCEPTED:
            kept[item.setting] = item.after
    if len(state.history) < 10:
        assert overlay(state) == kept, "what is in force was accepted, and nothing else is"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_traces_full_of_trouble_stay_in_bounds_and_end(part: int) -> None:
    num_changes = 0
    for seed in range(part, NUM_TROUBLED, 4):
        made = trace(seed, has_trouble=True)
        for _ in range(TURNS):
            turn(made)
        made.is_calm = True
        for _ in range(CALM_TURNS):
            turn(made)
            if not is_in_flight(made.rig.state):
                break
        assert not is_in_flight(made.rig.state), seed
        num_changes += made.rig.state.sequence
    assert num_changes > 20


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_at_one_load_every_kept_change_did_good_and_there_is_no_cycle(part: int) -> None:
    num_kept = 0
    for seed in range(10_000 + part, 10_000 + NUM_CALM, 4):
        made = trace(seed, has_trouble=False)
        for _ in range(TURNS):
            known = len(made.rig.notes)
            turn(made)
            told = [note.reason for note in made.rig.notes[known:]]
            if "ChangeAccepted" in told:
                assert_did_good(made.rig, made.rig.state.history[-1], seed)
                num_kept += 1
        while is_in_flight(made.rig.state):
            turn(made)
        assert_it_ended(made)
        assert_no_cycle(made.rig.state)
    assert num_kept > 5


def assert_did_good(rig: TunerRig, kept: Ended, seed: int) -> None:
    """By the formula itself, not by what was measured.

    A change that was kept since nobody is within the targets must have brought nearer the latency
    that it was kept for; every other one goodput.
    """
    load = rig.load(rig.now - START)
    after = rig.point()
    before = surfaces.point(rig.surface, replace_setting(rig, kept), load, rig.policy)
    was, now = (point.goodput(rig.policy.has_targets, load.output) for point in (before, after))
    if found := re.search(r"nobody is within the targets; (\w+) went", kept.reason):
        name = {"itl": "itl_p50", "ttft": "ttft"}[found[1]]
        assert getattr(after, name) < getattr(before, name), (seed, kept)
    else:
        assert now > was * 0.99, (seed, kept)


def replace_setting(rig: TunerRig, kept: Ended) -> surfaces.Knobs:
    fields = {
        "maxNumSeqs": "seqs",
        "maxNumBatchedTokens": "budget",
        "longPrefillTokens": "long_cap",
        "watermark": "watermark",
    }
    changed = {fields[kept.setting]: float(kept.before)}
    made = rig.knobs(**changed)
    if kept.setting == "maxNumBatchedTokens" and "longPrefillTokens" not in rig.in_force:
        made = replace(made, long_cap=float(kept.before) / 2)
    return made


def assert_no_cycle(state: State) -> None:
    values: dict[str, list[str]] = {}
    for item in state.history:
        if item.outcome is Outcome.ACCEPTED:
            values.setdefault(item.setting, [item.before]).append(item.after)
    for seen in values.values():
        assert len(seen) == len(set(seen)), seen


@pytest.mark.parametrize("symptom", [name for name, item in SCENARIOS.items() if item.turns])
@pytest.mark.slow
def test_a_harmful_change_is_always_taken_back(symptom: object) -> None:
    rig = rig_of(SCENARIOS[symptom])  # type: ignore[index]
    healthy = rig.surface
    for _ in range(240):
        harm = 3.0 if rig.in_force else 1.0
        rig.surface = replace(
            healthy, base_s=healthy.base_s * harm, per_seq_s=healthy.per_seq_s * harm,
            per_token_s=healthy.per_token_s * harm,
        )  # fmt: skip
        rig.turn()
    state = rig.state
    assert state.sequence > 0
    assert {item.outcome for item in state.history} <= {Outcome.ROLLED_BACK}
    assert rig.in_force == {}

"""Long and short prompts share a step, neither can starve the other."""

import hypothesis.strategies as st
from hypothesis import given

from paceline_engine.core.lanes import prefill_cap, split
from paceline_engine.testing.trial import Trial, tiny_limits

ROOMY = tiny_limits(num_blocks=600, block_size=8, max_slots=16, max_step_tokens=64)
WANTS = st.integers(0, 200)


@given(budget=st.integers(0, 100), cap=st.integers(1, 60), long=WANTS, short=WANTS)
def test_each_lane_gets_its_share_and_what_the_other_leaves(budget, cap, long, short) -> None:
    lanes = split(budget, cap, long, short, turn=1)
    guarantee = min(cap, (budget + 1) // 2)
    assert lanes.long >= min(budget, guarantee)
    assert lanes.short >= budget - guarantee
    if not long:
        assert lanes.short == budget
    if not short:
        assert lanes.long == budget
    if long >= budget and short >= budget:
        assert lanes.long + lanes.short == budget


def test_a_single_token_goes_to_each_lane_in_turn() -> None:
    given_to = [split(1, 4, 9, 9, turn) for turn in range(4)]
    assert [lanes.long for lanes in given_to] == [0, 1, 0, 1]
    assert [lanes.short for lanes in given_to] == [1, 0, 1, 0]


def test_the_cap_is_on_by_default_when_others_run_and_off_alone() -> None:
    assert prefill_cap(None, 64, 0) == 0
    assert prefill_cap(None, 64, 1) == 32
    assert prefill_cap(0, 64, 1) == 0
    assert prefill_cap(7, 64, 3) == 7


def test_a_long_prompt_alone_takes_the_whole_budget_and_half_of_it_beside_others() -> None:
    trial = Trial(ROOMY)
    trial.submit(range(90), max_tokens=1)
    plan = trial.step()
    assert plan is not None
    assert plan.num_tokens.tolist() == [64]
    trial.run()
    trial.submit([5], max_tokens=60)
    trial.step()
    trial.submit([7] * 90, max_tokens=1)
    plan = trial.step()
    assert plan is not None
    assert plan.num_tokens.tolist() == [1, 32]


def test_a_flood_of_short_prompts_cannot_stop_a_long_one() -> None:
    trial = Trial(ROOMY, prefix_caching=False)
    for number in range(10):
        trial.submit([number] * 30, max_tokens=1)
    long = trial.submit([60] * 400, max_tokens=1)
    steps = 0
    while long not in trial.finished:
        for number in range(3):
            trial.submit([number, steps % 90] * 15, max_tokens=1)
        trial.step()
        steps += 1
        assert steps < 60
    # The ten short ones before it cost five steps; then it gets at least half of each step.
    assert steps <= 5 + 400 // 31 + 2
    trial.run()
    trial.assert_all_solo()


def test_a_flood_of_long_prompts_cannot_stop_a_short_one() -> None:
    trial = Trial(ROOMY, prefix_caching=False)
    for number in range(12):
        trial.submit([number] * 300, max_tokens=1)
    trial.step()
    short = trial.submit([60] * 20, max_tokens=1)
    steps = 0
    while short not in trial.finished:
        trial.submit([70 + steps] * 300, max_tokens=1)
        trial.step()
        steps += 1
        assert steps <= 2
    trial.run()
    trial.assert_all_solo()


def test_with_a_budget_of_one_both_lanes_get_on() -> None:
    trial = Trial(ROOMY, max_num_batched_tokens=1, prefix_caching=False, long_prefill_tokens=4)
    long = trial.submit([1] * 30, max_tokens=1)
    short = trial.submit([2] * 3, max_tokens=1)
    steps = trial.run(100)
    assert {long, short} <= set(trial.finished)
    assert steps <= 40
    trial.assert_all_solo()


def test_a_long_prompt_whose_prefix_is_cached_is_let_in_whichever_lane_has_the_turn() -> None:
    trial = Trial(tiny_limits(num_blocks=9), max_num_batched_tokens=1)
    trial.submit([3] * 9, max_tokens=1)
    trial.run()
    for _ in range(4):  # 9 tokens are long, the one that is not cached is short: an odd turn's
        trial.submit([3] * 9, max_tokens=1)
    trial.run()  # fails when a step has work and plans nothing
    trial.assert_all_solo()


@given(budget=st.integers(0, 20), cap=st.integers(0, 10), long=WANTS, short=WANTS)
def test_a_lane_has_room_while_one_of_its_requests_could_take_a_token(
    budget, cap, long, short
) -> None:
    lanes = split(budget, cap, long, short, turn=1)
    for _ in range(budget + 1):
        short_one, long_one = lanes.room(1), lanes.room(cap + 1 if cap else 1000)
        assert lanes.has_room() == (short_one > 0, long_one > 0)
        lanes.take(min(1, max(short_one, long_one)), is_long=not short_one)


def test_a_long_prompt_that_came_first_is_not_overtaken_by_a_short_one_for_the_next_seat() -> None:
    trial = Trial(ROOMY, max_num_seqs=1, long_prefill_tokens=8)
    for length in (3, 30, 4):
        trial.submit([length] * length, max_tokens=2)
    trial.run()
    assert [added.request_id for plan in trial.plans for added in plan.added] == [0, 1, 2]

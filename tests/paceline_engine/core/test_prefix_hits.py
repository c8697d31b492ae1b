"""Prefix hits as the scheduler takes them."""

import pytest

from paceline_engine.testing.fake_runner import Failure, solo_prompt_logprobs
from paceline_engine.testing.trial import Trial, tiny_limits

PROMPT = list(range(20))
EAGLE = {"speculative_method": "Eagle", "speculative_model": "/a/head"}


def added(trial: Trial, request_id: int):
    return [a for plan in trial.plans for a in plan.added if a.request_id == request_id]


def test_a_hit_covers_whole_blocks_and_leaves_a_token_to_compute() -> None:
    trial = Trial()
    trial.submit(range(16), max_tokens=1)
    trial.run()
    same = trial.submit(range(16), max_tokens=3)
    longer = trial.submit(range(21), max_tokens=3)
    trial.run()
    assert added(trial, same)[0].num_computed_tokens == 8
    assert added(trial, longer)[0].num_computed_tokens == 16
    assert trial.cached[same] == 8
    assert trial.finished[longer].num_cached_tokens == 16
    trial.assert_all_solo()


@pytest.mark.parametrize("method", [{"speculative_method": "Mtp"}, EAGLE])
def test_with_a_proposer_that_reads_hidden_states_a_hit_stops_one_block_earlier(
    method: dict[str, str],
) -> None:
    trial = Trial(speculative_num_tokens=2, **method)
    trial.submit(range(24), max_tokens=1)
    trial.run()
    same = trial.submit(range(24), max_tokens=3)
    longer = trial.submit(range(29), max_tokens=3)
    short = trial.submit(range(9), max_tokens=3)
    trial.run()
    assert added(trial, same)[0].num_computed_tokens == 8
    assert added(trial, longer)[0].num_computed_tokens == 16
    assert added(trial, short)[0].num_computed_tokens == 0
    trial.assert_all_solo()


def test_outputs_are_found_again_by_the_next_turn_of_a_conversation() -> None:
    trial = Trial()
    first = trial.submit(PROMPT, max_tokens=30)
    trial.run()
    turn = PROMPT + trial.outputs[first] + [1, 2, 3]
    second = trial.submit(turn, max_tokens=5)
    trial.run()
    assert trial.cached[second] == 48  # all computed tokens but the last output, in whole blocks
    trial.assert_all_solo()


def test_outputs_of_a_request_that_still_runs_are_found_too() -> None:
    trial = Trial()
    first = trial.submit(PROMPT, max_tokens=60)
    for _ in range(30):
        trial.step()
    second = trial.submit(PROMPT + trial.outputs[first], max_tokens=5)
    trial.run()
    assert trial.cached[second] == 48
    trial.assert_all_solo()


def test_two_requests_with_the_same_new_prefix_compute_it_once_in_the_same_step() -> None:
    trial = Trial(long_prefill_tokens=0)
    leader = trial.submit([*PROMPT, 50], max_tokens=4)
    follower = trial.submit([*PROMPT, 51], max_tokens=4)
    plan = trial.plan()
    assert plan is not None
    assert plan.request_ids.tolist() == [leader, follower]
    assert plan.num_tokens.tolist() == [21, 5]
    assert plan.starts.tolist() == [0, 16]
    trial.apply()
    trial.run()
    assert trial.cached == {leader: 0, follower: 16}
    trial.assert_all_solo()


def test_a_follower_lives_on_when_its_leader_is_aborted_between_plan_and_result() -> None:
    trial = Trial(long_prefill_tokens=0)
    leader = trial.submit([*PROMPT, 50], max_tokens=4)
    follower = trial.submit([*PROMPT, 51], max_tokens=4)
    trial.plan()
    trial.abort(leader)
    trial.apply()
    trial.run()
    trial.assert_solo(follower)


@pytest.mark.parametrize("failure", Failure)
def test_a_failed_step_withdraws_its_names_and_sets_followers_back(failure: Failure) -> None:
    trial = Trial(long_prefill_tokens=0)
    for last in (50, 51, 52):
        trial.submit([*PROMPT, last], max_tokens=4)
    trial.runner.fail_next(failure)
    trial.plan()
    if failure is Failure.IN_SAMPLE:
        trial.apply()
    described = trial.scheduler.describe(0.0)
    assert [r["num_computed_tokens"] for r in described] == [0, 0, 0]
    late = trial.submit([*PROMPT, 53], max_tokens=4)
    trial.run()
    trial.assert_all_solo()
    assert trial.finished[late].num_cached_tokens in (0, 16)


def test_different_salts_never_share_blocks() -> None:
    trial = Trial()
    trial.submit(PROMPT, max_tokens=2, cache_salt="a")
    trial.run()
    other = trial.submit(PROMPT, max_tokens=2, cache_salt="b")
    plain = trial.submit(PROMPT, max_tokens=2)
    same = trial.submit(PROMPT, max_tokens=2, cache_salt="a")
    trial.run()
    assert [trial.cached[i] for i in (other, plain, same)] == [0, 0, 16]


def test_prefix_caching_can_be_switched_off_and_on_while_requests_run() -> None:
    trial = Trial()
    trial.submit(PROMPT, max_tokens=40)
    for _ in range(6):
        trial.step()
    trial.change(prefix_caching=False)
    off = trial.submit(PROMPT, max_tokens=20)
    for _ in range(10):
        trial.step()
    trial.change(prefix_caching=True)
    on = trial.submit(PROMPT, max_tokens=20)
    trial.run()
    assert (trial.cached[off], trial.cached[on]) == (0, 16)
    trial.assert_all_solo()


def test_a_reset_forgets_everything_that_nobody_uses() -> None:
    trial = Trial()
    trial.submit(PROMPT, max_tokens=2)
    trial.run()
    assert trial.scheduler.reset_prefix_cache() == 2
    again = trial.submit(PROMPT, max_tokens=2)
    trial.run()
    assert trial.cached[again] == 0


def test_prompt_logprobs_take_no_hit_at_first() -> None:
    trial = Trial()
    trial.submit(PROMPT, max_tokens=1)
    trial.run()
    asking = trial.submit(PROMPT, max_tokens=3, prompt_logprobs=0)
    trial.run()
    assert added(trial, asking)[0].num_computed_tokens == 0
    assert trial.cached[asking] == 0
    assert trial.prompt_logprobs[asking] == solo_prompt_logprobs(trial.requests[asking])


def test_prompt_logprobs_that_are_gathered_stay_and_allow_hits_after_preemption() -> None:
    trial = Trial(tiny_limits(num_blocks=13, block_size=8), watermark="0")
    trial.expect_short_outputs()
    trial.submit([1] * 20, max_tokens=45)
    asking = trial.submit([9] * 40, max_tokens=20, prompt_logprobs=0)
    trial.run()
    first, again, *_ = added(trial, asking)
    assert first.num_emitted_prompt_logprobs == 0
    assert again.num_emitted_prompt_logprobs == 39
    assert again.num_computed_tokens > 0
    assert trial.prompt_logprobs[asking] == solo_prompt_logprobs(trial.requests[asking])
    trial.assert_all_solo()


def test_cached_tokens_are_counted_once_and_never_as_computed() -> None:
    trial = Trial()
    for _ in range(3):
        trial.submit(PROMPT, max_tokens=5)
        trial.run()
    values = trial.recorder.snapshot(trial.now)
    assert values.values["vllm:prefix_cache_queries_total"][()] == 60
    assert values.values["vllm:prefix_cache_hits_total"][()] == 32
    computed = values.histograms["vllm:iteration_tokens_total"].sum
    assert computed == 3 * (20 + 5 - 1) - 32 == trial.runner.num_tokens


def test_usage_counts_referenced_blocks_and_the_states_add_up() -> None:
    trial = Trial()
    trial.submit(PROMPT, max_tokens=5)
    trial.step()
    assert trial.scheduler.usage() == (3, 0, 60, 0)
    trial.run()
    assert trial.scheduler.usage() == (0, 3, 60, 0)  # 24 tokens were computed

"""A request's way through the scheduler: budget, chunks, ends, refusals, late results."""

import numpy as np
import pytest

from paceline_crds.settings import Batching
from paceline_engine.core.request import FinishReason
from paceline_engine.testing.fake_runner import Failure, solo_prompt_logprobs, solo_tokens
from paceline_engine.testing.trial import Trial, tiny_limits


def tokens_of(trial: Trial, request_id: int) -> list[int]:
    """Tokens that each plan computed for a request; 0 where it had no row."""
    return [int(plan.num_tokens[plan.request_ids == request_id].sum()) for plan in trial.plans]


# -- budget and order -------------------------------------------------------------------------


@pytest.mark.parametrize("max_plans", [1, 2])
@pytest.mark.parametrize("num_blocks", [8, 20, 64])
def test_many_requests_get_the_tokens_they_would_get_alone(max_plans: int, num_blocks: int) -> None:
    limits = tiny_limits(num_blocks=num_blocks, vocab_size=50, eos_token_ids=(3,))
    trial = Trial(limits, max_plans=max_plans, max_num_batched_tokens=24, max_num_seqs=8)
    for number in range(12):
        trial.submit([number % 3] * (1 + 5 * number % 37), max_tokens=3 * number % 14)
    trial.run()
    trial.assert_all_solo()


@pytest.mark.slow
def test_a_step_stays_within_the_budget_and_the_sequence_limit() -> None:
    trial = Trial(max_num_batched_tokens=10, max_num_seqs=3)
    for number in range(9):
        trial.submit(range(number, number + 7 * number + 1), max_tokens=5)
    while trial.scheduler.has_work:
        trial.step()
        assert trial.scheduler.num_running <= 3
    assert max(plan.total_tokens for plan in trial.plans) == 10
    trial.assert_all_solo()


def test_after_a_cut_of_the_sequence_limit_running_requests_drain_and_nobody_is_killed() -> None:
    trial = Trial(max_num_seqs=6)
    for number in range(10):
        trial.submit([number, 1], max_tokens=4 + number)
    trial.step()
    assert trial.scheduler.num_running == 6
    trial.change(max_num_seqs=2)
    trial.step()
    assert trial.scheduler.num_running == 6
    while trial.scheduler.num_running > 2:
        assert not trial.plans[-1].added
        trial.step()
    trial.run()
    trial.assert_all_solo()


def test_decodes_come_before_chunks_and_chunks_before_the_queue() -> None:
    trial = Trial(max_num_batched_tokens=16, long_prefill_tokens=0)
    decode = trial.submit([1, 2], max_tokens=30)
    trial.step()
    chunked = trial.submit(range(40), max_tokens=2)
    late = trial.submit(range(50, 55), max_tokens=2)
    for _ in range(4):
        trial.step()
    assert tokens_of(trial, decode)[1:] == [1, 1, 1, 1]
    assert tokens_of(trial, chunked)[1:] == [15, 15, 10, 1]
    assert tokens_of(trial, late)[1:] == [0, 0, 5, 1]


def test_a_budget_smaller_than_the_decodes_rotates_over_them() -> None:
    trial = Trial(max_num_seqs=6)
    for number in range(6):
        trial.submit([number], max_tokens=8)
    trial.step()
    trial.change(max_num_batched_tokens=4)
    for _ in range(6):
        trial.step()
    assert {len(outputs) for outputs in trial.outputs.values()} == {5}
    trial.run()
    trial.assert_all_solo()


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks_that_yield_nothing() -> None:
    trial = Trial(max_num_batched_tokens=16)
    trial.submit(range(40), max_tokens=2)
    plans = [trial.step() for _ in range(3)]
    assert [plan.num_tokens.tolist() for plan in plans if plan] == [[16], [16], [8]]
    assert [plan.samples.tolist() for plan in plans if plan] == [[False], [False], [True]]
    trial.run()
    trial.assert_all_solo()


def test_blocks_are_reserved_before_a_step_is_planned() -> None:
    trial = Trial(tiny_limits(num_blocks=5, block_size=8), max_num_seqs=4)
    trial.expect_short_outputs()
    for number in range(4):
        trial.submit([number], max_tokens=20)
    while trial.scheduler.has_work:  # the fake runner refuses rows beyond their blocks
        trial.step()
    trial.assert_all_solo()


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    trial = Trial(tiny_limits(num_blocks=7, block_size=8), watermark="0")
    trial.expect_short_outputs()
    for number in range(6):
        trial.submit([number] * 7, max_tokens=20)
    seen = 0
    while trial.scheduler.has_work:
        before = {r["id"]: r["num_preemptions"] for r in trial.scheduler.describe(trial.now)}
        trial.plan()
        after = {r["id"]: r["num_preemptions"] for r in trial.scheduler.describe(trial.now)}
        if after != before:
            seen += 1
            assert not trial.plans[-1].added
        trial.apply()
    assert seen
    trial.assert_all_solo()


def test_a_plan_without_speculation_carries_no_drafts() -> None:
    trial = Trial()
    trial.submit([1, 2, 3], max_tokens=5)
    trial.run()
    assert all(not plan.num_drafts.any() and not len(plan.draft_tokens) for plan in trial.plans)


# -- plan and apply ---------------------------------------------------------------------------


def test_two_plans_may_be_outstanding_and_a_third_is_not_made() -> None:
    trial = Trial(max_plans=2)
    request = trial.submit([1, 2, 3], max_tokens=6)
    assert trial.plan() is not None
    second = trial.plan()
    assert second is not None
    assert second.starts.tolist() == [3]  # of the token that the first step will yield
    assert trial.plan() is None
    trial.apply()
    assert len(trial.outputs[request]) == 1
    trial.run()
    trial.assert_all_solo()


def test_a_request_that_reaches_its_length_in_flight_is_not_planned_again() -> None:
    trial = Trial(max_plans=2)
    trial.submit([1, 2, 3], max_tokens=1)
    assert trial.plan() is not None
    assert trial.plan() is None
    trial.apply()
    assert not trial.scheduler.has_work


def test_rows_of_a_request_that_ended_meanwhile_are_dropped() -> None:
    limits = tiny_limits(eos_token_ids=tuple(range(97)))  # every token ends
    trial = Trial(limits, max_plans=2)
    request = trial.submit([1, 2, 3], max_tokens=9)
    trial.plan()
    trial.plan()
    trial.apply()
    assert trial.finished[request].reason is FinishReason.STOP
    outputs = trial.apply()
    assert outputs is not None
    assert not len(outputs.request_ids)
    trial.assert_all_solo()


def test_results_out_of_order_are_an_error() -> None:
    trial = Trial(max_plans=2)
    trial.submit([1, 2, 3], max_tokens=9)
    trial.plan()
    trial.plan()
    first, second = trial.runner.sample(), trial.runner.sample()
    with pytest.raises(ValueError, match="expected the result of step 0"):
        trial.scheduler.apply(second, 0.0)
    trial.scheduler.apply(first, 0.0)


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize("max_plans", [1, 2])
def test_a_failed_step_is_computed_again_and_nobody_notices(
    failure: Failure, max_plans: int
) -> None:
    trial = Trial(max_plans=max_plans, max_num_batched_tokens=20)
    for number in range(4):
        trial.submit([1] * 17 + [number] * 9, max_tokens=12)
    for _ in range(6):
        trial.step()
        trial.runner.fail_next(failure)
        trial.step()
    trial.run()
    trial.assert_all_solo()


def test_live_changes_fall_between_plans_in_flight() -> None:
    trial = Trial(max_plans=2)
    for number in range(6):
        trial.submit(range(number, number + 20), max_tokens=9)
    trial.plan()
    trial.change(max_num_batched_tokens=7, max_num_seqs=3)
    trial.plan()
    trial.apply()
    assert trial.scheduler.settings.max_num_seqs == 3
    trial.run()
    trial.assert_all_solo()


def test_a_setting_that_needs_a_restart_is_an_error() -> None:
    trial = Trial()
    with pytest.raises(ValueError, match="restart"):
        trial.change(batching=Batching.STATIC)


# -- ends ------------------------------------------------------------------------------------


def test_an_end_token_ends_only_after_min_tokens() -> None:
    trial = Trial(tiny_limits(eos_token_ids=tuple(range(97))))
    ids = [trial.submit([5, number], max_tokens=9, min_tokens=number) for number in (0, 3)]
    ids.append(trial.submit([5, 9], max_tokens=4, ignore_eos=True))
    trial.run()
    assert [trial.finished[i].num_output_tokens for i in ids] == [1, 4, 4]
    assert trial.finished[ids[1]].stop_token_id == trial.outputs[ids[1]][-1]
    trial.assert_all_solo()


def test_a_stop_token_of_one_request_does_not_end_another() -> None:
    trial = Trial()
    probe = trial.request([5, 6], max_tokens=6)
    outputs, _ = solo_tokens(probe, trial.limits)
    stops = trial.submit([5, 6], max_tokens=6, stop_token_ids=(outputs[2],))
    goes_on = trial.submit([5, 6], max_tokens=6)
    trial.run()
    assert trial.finished[stops].reason is FinishReason.STOP
    assert trial.finished[stops].stop_token_id == outputs[2]
    assert trial.finished[goes_on].reason is FinishReason.LENGTH
    trial.assert_all_solo()


def test_max_tokens_zero_computes_the_prompt_and_yields_nothing() -> None:
    trial = Trial(max_num_batched_tokens=16)
    request = trial.submit(range(40), max_tokens=0, prompt_logprobs=0)
    trial.run()
    assert trial.outputs[request] == []
    assert trial.finished[request].reason is FinishReason.LENGTH
    assert trial.prompt_logprobs[request] == solo_prompt_logprobs(trial.requests[request])


def test_a_row_that_fails_alone_ends_its_request_with_an_error() -> None:
    trial = Trial()
    good, bad = (trial.submit([number], max_tokens=5) for number in (1, 2))
    trial.step()
    trial.runner.bad_requests.add(bad)
    trial.run()
    assert trial.finished[bad].reason is FinishReason.ERROR
    assert "finite" in trial.finished[bad].message
    trial.assert_solo(good)


def test_logprobs_come_with_their_tokens() -> None:
    trial = Trial()
    request = trial.submit([4], max_tokens=3, logprobs=0)
    other = trial.submit([5], max_tokens=3)
    trial.plan()
    outputs = trial.apply()
    assert outputs is not None
    assert set(outputs.logprobs) == {request}
    (entry,) = outputs.logprobs[request]
    assert [entry.token_id] == trial.outputs[request]
    trial.step()
    trial.run()
    trial.assert_solo(other)


def test_a_stop_string_found_outside_ends_the_request_there() -> None:
    trial = Trial()
    request = trial.submit([4], max_tokens=50)
    for _ in range(5):
        trial.step()
    finished = trial.stop(request, 3)
    assert finished is not None
    assert (finished.reason, finished.num_output_tokens) == (FinishReason.STOP, 3)
    assert trial.stop(request, 3) is None
    assert trial.scheduler.usage()[0] == 0


# -- persistence -----------------------------------------------------------------------------


def test_unchanged_decodes_share_their_arrays_from_step_to_step() -> None:
    trial = Trial()
    for number in range(4):
        trial.submit([number], max_tokens=40)
    trial.step()
    for _ in range(3):
        trial.step()
    first, second = trial.plans[-2:]
    assert first.slots is second.slots
    assert first.request_ids is second.request_ids
    assert not second.added
    np.testing.assert_array_equal(second.starts, first.starts + 1)


def test_every_request_is_described_with_the_reason_why_it_waits() -> None:
    trial = Trial(tiny_limits(num_blocks=9, block_size=8), max_num_seqs=3)
    trial.submit(range(40), max_tokens=8)
    trial.step()
    trial.submit(range(50, 90), max_tokens=8)
    trial.step()
    states = {r["id"]: (r["state"], r["wait_reason"]) for r in trial.scheduler.describe(1.0)}
    assert states == {0: ("running", ""), 1: ("waiting", "KVBlocks")}
    trial.change(max_num_seqs=1)
    assert trial.scheduler.describe(1.0)[1]["wait_reason"] == "SequenceLimit"


def test_static_batching_runs_a_batch_to_its_end_before_the_next() -> None:
    trial = Trial(batching=Batching.STATIC, max_num_seqs=3, max_num_batched_tokens=8)
    for number in range(7):
        trial.submit([number] * 5, max_tokens=2 + 3 * number)
    batches: list[set[int]] = []
    while trial.scheduler.has_work:
        running = {r["id"] for r in trial.scheduler.describe(0.0) if r["state"] == "running"}
        trial.step()
        for added in trial.plans[-1].added:
            if not running:
                batches.append(set())
                running.add(-1)
            batches[-1].add(added.request_id)
    assert batches == [{0, 1, 2}, {3, 4, 5}, {6}]
    trial.assert_all_solo()

"""Drafts in the schedule: they cost budget and blocks, and never change what a request says."""

import numpy as np
import pytest

from paceline_crds import metrics
from paceline_engine.core.request import FinishReason
from paceline_engine.testing.fake_runner import Failure, next_token, partly_right, solo_tokens
from paceline_engine.testing.trial import Trial, tiny_limits

VOCAB = 97
ALL_RIGHT, ALL_WRONG = 10**9, 1


def right(tokens: list[int], max_drafts: int) -> list[int]:
    """As many drafts as are wanted, all as the model says."""
    drafts: list[int] = []
    while len(drafts) < max_drafts:
        drafts.append(next_token([*tokens, *drafts], VOCAB))
    return drafts


def wrong(tokens: list[int], max_drafts: int) -> list[int]:
    return [(token + 1) % VOCAB for token in right(tokens, max_drafts)]


def value(trial: Trial, name: str, **labels: str) -> float:
    return trial.recorder.snapshot(trial.now).value(name, **labels)


def test_right_drafts_give_several_tokens_a_step():
    trial = Trial(drafter=right)
    request = trial.submit(range(10), max_tokens=21)
    # The prompt's step gives one token, then each gives four drafts and one more.
    assert trial.run() == 1 + 4
    trial.assert_all_solo()
    assert [int(plan.num_drafts.sum()) for plan in trial.plans] == [0, 4, 4, 4, 4]
    assert len(trial.outputs[request]) == 21


@pytest.mark.parametrize("one_wrong_in", [ALL_WRONG, 2, 5, ALL_RIGHT])
def test_tokens_are_those_without_drafts_however_many_hold(one_wrong_in):
    trial = Trial(drafter=partly_right(VOCAB, one_wrong_in=one_wrong_in))
    for i in range(6):
        trial.submit(range(i, i + 9), max_tokens=30, min_tokens=3, stop_token_ids=(5, 50))
        trial.step()
    trial.run()
    trial.assert_all_solo()
    assert trial.runner.num_drafts > 0
    assert (trial.runner.num_accepted == 0) == (one_wrong_in == ALL_WRONG)


def test_rejected_drafts_are_taken_back_and_their_positions_computed_again():
    trial = Trial(drafter=wrong)
    trial.submit(range(10), max_tokens=6)
    trial.run()
    assert [plan.starts.tolist() for plan in trial.plans] == [[0], [10], [11], [12], [13], [14]]
    assert [int(plan.num_tokens[0]) for plan in trial.plans[1:]] == [5, 4, 3, 2, 1]
    trial.assert_all_solo()


def test_what_stands_behind_a_stop_inside_an_accepted_run_is_given_to_nobody():
    trial = Trial(drafter=right)
    probe = trial.request(range(10), max_tokens=20)
    tokens, _ = solo_tokens(probe, trial.limits)
    stop = tokens[3]
    assert stop not in tokens[:3]
    request = trial.submit(range(10), max_tokens=20, stop_token_ids=(stop,), logprobs=0)
    entries = 0
    while trial.scheduler.has_work:
        trial.plan()
        outputs = trial.apply()
        assert outputs is not None
        entries += sum(map(len, outputs.logprobs.values()))
    assert trial.outputs[request] == tokens[:4]
    assert entries == 4
    done = trial.finished[request]
    assert (done.reason, done.stop_token_id, done.num_output_tokens) == (FinishReason.STOP, stop, 4)
    # The second step gave five tokens, two of them behind the stop.
    assert value(trial, metrics.DISCARDED) == 2
    assert value(trial, metrics.GENERATION_TOKENS) == 4


def test_an_end_token_inside_a_run_does_not_count_before_min_tokens():
    trial = Trial(drafter=right)
    tokens, _ = solo_tokens(trial.request(range(10), max_tokens=20), trial.limits)
    early, late = tokens[2], tokens[6]
    request = trial.submit(
        range(10), max_tokens=20, min_tokens=5, stop_token_ids=(early, late), ignore_eos=True
    )
    trial.run()
    assert trial.outputs[request] == tokens[:7]
    assert trial.finished[request].stop_token_id == late


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 6, 7])
def test_no_draft_reaches_beyond_the_length_limit(max_tokens):
    trial = Trial(drafter=right)
    trial.submit(range(10), max_tokens=max_tokens)
    trial.run()
    trial.assert_all_solo()
    assert value(trial, metrics.DISCARDED) == 0
    assert max(int((plan.starts + plan.num_tokens).max()) for plan in trial.plans) <= 9 + max_tokens


def test_drafts_spend_what_decodes_and_chunks_leave_of_the_budget():
    trial = Trial(max_num_batched_tokens=12, drafter=right, long_prefill_tokens=0)
    for i in range(3):
        trial.submit(range(i, i + 3), max_tokens=40)
    trial.step()
    plan = trial.step()
    assert plan is not None
    assert plan.num_drafts.tolist() == [3, 3, 3]
    trial.submit(range(50), max_tokens=2)
    plan = trial.step()
    assert plan is not None
    assert plan.total_tokens <= 12
    assert plan.num_drafts.sum() <= 4, "who waits finds at least half of what decodes leave"
    plan = trial.step()  # its next chunk comes before drafts
    assert plan is not None
    assert plan.num_drafts.sum() == 0
    assert plan.total_tokens == 12
    trial.run()
    trial.assert_all_solo()


def test_a_request_alone_in_a_full_pool_goes_without_drafts_instead_of_preempting_itself():
    trial = Trial(tiny_limits(num_blocks=5, block_size=8), drafter=right, watermark="0")
    trial.submit(range(20), max_tokens=12)
    trial.run()
    trial.assert_all_solo()
    assert value(trial, metrics.PREEMPTIONS) == 0


def test_drafts_take_no_blocks_when_somebody_was_preempted_for_them():
    trial = Trial(tiny_limits(num_blocks=9, block_size=8), drafter=right, watermark="0")
    trial.expect_short_outputs()
    for i in range(3):
        trial.submit(range(i, i + 10), max_tokens=40)
    while trial.scheduler.has_work:
        before = value(trial, metrics.PREEMPTIONS)
        plan = trial.step()
        if plan is not None and value(trial, metrics.PREEMPTIONS) > before:
            # The blocks of this step are those of its first tokens alone.
            lookahead = plan.starts + plan.num_tokens - plan.num_drafts
            owned = (lookahead + 7) // 8 * 8
            assert (plan.starts + plan.num_tokens <= owned).all()
    trial.assert_all_solo()
    assert value(trial, metrics.PREEMPTIONS) > 0


def test_blocks_of_drafts_get_names_only_as_far_as_they_were_accepted():
    trial = Trial(drafter=wrong)
    first = trial.submit(range(10), max_tokens=30)
    trial.run()
    prompt = [*range(10), *trial.outputs[first]]
    second = trial.submit(prompt, max_tokens=4)
    trial.run()
    trial.assert_all_solo()
    # 40 known tokens, the last of which was never computed: four full blocks of eight.
    assert trial.cached[second] == 32


def test_a_block_that_an_accepted_run_ends_is_not_found_before_its_last_token_is_computed():
    trial = Trial(drafter=right)
    first = trial.submit(range(20), max_tokens=4)
    trial.run()
    assert trial.runner.num_accepted == 2
    # 24 known tokens are three blocks, but nobody computed the last one.
    second = trial.submit([*range(20), *trial.outputs[first], 1, 2, 3], max_tokens=4)
    trial.run()
    assert trial.cached[second] == 16
    trial.assert_all_solo()


def test_accepted_runs_over_several_blocks_name_all_of_them():
    trial = Trial(drafter=right, speculative_num_tokens=20)
    first = trial.submit(range(10), max_tokens=60)
    trial.run()
    second = trial.submit([*range(10), *trial.outputs[first]], max_tokens=4)
    trial.run()
    trial.assert_all_solo()
    assert trial.cached[second] == 64


def test_drafts_that_a_step_did_not_take_are_gone():
    trial = Trial(drafter=right)
    trial.submit(range(10), max_tokens=30)
    trial.step()
    trial.change(speculative_num_tokens=0)
    plan = trial.step()
    assert plan is not None
    assert plan.num_drafts.sum() == plan.max_drafts == 0
    trial.change(speculative_num_tokens=4)
    plan = trial.step()
    assert plan is not None
    assert plan.num_drafts.sum() == 0, "nothing was asked for with the step before"
    plan = trial.step()
    assert plan is not None
    assert plan.num_drafts.tolist() == [4]
    trial.run()
    trial.assert_all_solo()


@pytest.mark.parametrize("failure", list(Failure))
def test_a_failed_step_takes_its_drafts_with_it(failure):
    trial = Trial(drafter=right)
    for i in range(2):
        trial.submit(range(i, i + 10), max_tokens=30)
    trial.step()
    trial.runner.fail_next(failure)
    trial.step()
    trial.run()
    trial.assert_all_solo()


def test_an_abort_while_drafts_are_in_flight_leaves_nothing_behind():
    trial = Trial(drafter=right)
    requests = [trial.submit(range(i, i + 10), max_tokens=30) for i in range(2)]
    trial.step()
    plan = trial.plan()
    assert plan is not None
    assert plan.num_drafts.tolist() == [4, 4]
    trial.abort(requests[0])
    trial.apply()
    assert len(trial.outputs[requests[0]]) == 1
    trial.run()
    trial.assert_solo(requests[1])
    assert value(trial, metrics.DISCARDED) == 1
    assert trial.scheduler.usage()[0] == 0


def test_a_row_with_drafts_in_flight_is_not_planned_again_before_its_result():
    trial = Trial(drafter=right, max_plans=2)
    request = trial.submit(range(10), max_tokens=30)
    trial.plan()
    trial.apply()
    plan = trial.plan()
    assert plan is not None
    assert plan.num_drafts.tolist() == [4]
    assert trial.plan() is None
    trial.apply()
    assert len(trial.outputs[request]) == 6
    trial.run()
    trial.assert_all_solo()


def test_drafts_of_a_request_that_goes_on_meanwhile_are_not_taken():
    trial = Trial(drafter=right, max_plans=2)
    trial.submit(range(10), max_tokens=20)
    while trial.scheduler.has_work:
        trial.step()
    trial.assert_all_solo()
    assert max(len(plan.draft_tokens) for plan in trial.plans) == 0


def test_drafts_do_not_pass_to_the_next_request_in_the_slot():
    trial = Trial(drafter=right, max_num_seqs=1)
    first = trial.submit(range(10), max_tokens=20)
    trial.submit(range(20, 30), max_tokens=20)
    trial.step()
    trial.abort(first)
    plan = trial.step()
    assert plan is not None
    assert (plan.slots.tolist(), plan.num_drafts.tolist()) == ([0], [0])
    trial.run()
    trial.assert_solo(1)


@pytest.mark.parametrize("one_wrong_in", [ALL_WRONG, 3, ALL_RIGHT])
def test_computed_tokens_are_those_without_drafts_plus_rejected_and_discarded_ones(one_wrong_in):
    trial = Trial(
        tiny_limits(eos_token_ids=(7,)), drafter=partly_right(VOCAB, one_wrong_in=one_wrong_in)
    )
    for i in range(8):
        trial.submit(range(i, i + 12), max_tokens=40)
    trial.run()
    trial.assert_all_solo()
    stats = trial.recorder.snapshot(trial.now)
    drafted, accepted = stats.value(metrics.SPEC_DRAFT_TOKENS), stats.value(metrics.SPEC_ACCEPTED)
    assert (drafted, accepted) == (trial.runner.num_drafts, trial.runner.num_accepted)
    needed = sum(
        done.num_prompt_tokens + done.num_output_tokens - 1 - done.num_cached_tokens
        for done in trial.finished.values()
    )
    extra = drafted - accepted + stats.value(metrics.DISCARDED)
    assert stats.histogram(metrics.ITERATION_TOKENS).sum == needed + extra
    assert stats.value(metrics.GENERATION_TOKENS) == sum(map(len, trial.outputs.values()))
    assert stats.value(metrics.SPEC_DRAFTS) == sum(
        int(np.count_nonzero(plan.num_drafts)) for plan in trial.plans
    )
    num_steps_with_tokens = sum(int(plan.samples.sum()) for plan in trial.plans) - 8
    assert stats.histogram(metrics.ITL).count == num_steps_with_tokens


@pytest.mark.parametrize(
    ("drafter", "cost_ms", "pays"),
    [
        (right, lambda tokens: 1 + 0.1 * tokens, True),
        (right, lambda tokens: tokens**1.5, False),
        (wrong, lambda tokens: 1 + 0.1 * tokens, False),
    ],
)
def test_as_many_drafts_are_asked_for_as_pay(drafter, cost_ms, pays):
    trial = Trial(drafter=drafter, speculative_adaptive=True)
    trial.runner.step_ms = lambda plan: cost_ms(plan.total_tokens)
    trial.submit(range(10), max_tokens=400)
    trial.run()
    trial.assert_all_solo()
    asked = [plan.max_drafts for plan in trial.plans[10:]]
    assert sorted(asked)[len(asked) // 2] == (4 if pays else 0)
    assert (value(trial, metrics.SPECULATION_GOODPUT) > 5) == pays
    trial.change(speculative_adaptive=False)
    trial.submit(range(10), max_tokens=4)
    assert trial.step().max_drafts == 4

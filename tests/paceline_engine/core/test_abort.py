"""An abort in every state leaves nothing behind and loses nothing."""

import pytest

from paceline_engine.core.request import FinishReason
from paceline_engine.testing.fake_runner import Failure, solo_tokens
from paceline_engine.testing.trial import Trial, tiny_limits


def assert_clean(trial: Trial) -> None:
    trial.run()
    trial.scheduler.check()
    active, _, _, held = trial.scheduler.usage()
    assert active == held == 0
    values = trial.recorder.snapshot(trial.now).values
    assert values["vllm:num_requests_running"][()] == 0
    assert values["vllm:num_requests_waiting"][()] == 0


def test_abort_of_an_unknown_id_is_no_error() -> None:
    trial = Trial()
    assert trial.abort(12345) is None
    assert not trial.scheduler.has_work


def test_abort_while_it_waits_with_no_blocks() -> None:
    trial = Trial(max_num_seqs=1)
    runs = trial.submit([1], max_tokens=9)
    waits = trial.submit([2], max_tokens=9)
    trial.step()
    finished = trial.abort(waits)
    assert finished is not None
    assert (finished.reason, finished.num_output_tokens) == (FinishReason.ABORT, 0)
    assert_clean(trial)
    trial.assert_solo(runs)


def test_abort_before_the_first_plan_and_the_engine_is_idle_again() -> None:
    trial = Trial()
    trial.abort(trial.submit([1], max_tokens=9))
    assert not trial.scheduler.has_work
    assert trial.plan() is None
    assert_clean(trial)


@pytest.mark.parametrize("max_plans", [1, 2])
def test_abort_while_it_runs(max_plans: int) -> None:
    trial = Trial(max_plans=max_plans)
    stays, goes = trial.submit([1] * 20, max_tokens=30), trial.submit([1] * 20, max_tokens=30)
    for _ in range(5):
        trial.step()
    finished = trial.abort(goes)
    assert finished is not None
    assert finished.num_output_tokens == len(trial.outputs[goes])
    told = len(trial.outputs[goes])
    assert_clean(trial)
    assert len(trial.outputs[goes]) == told
    trial.assert_solo(stays)


@pytest.mark.parametrize("max_plans", [1, 2])
@pytest.mark.parametrize("prompt", [3, 100], ids=["decode", "chunk"])
def test_abort_between_plan_and_result_holds_its_blocks_until_then(
    max_plans: int, prompt: int
) -> None:
    trial = Trial(max_plans=max_plans, max_num_batched_tokens=32)
    request = trial.submit([1] * prompt, max_tokens=30)
    trial.step()
    trial.plan()
    trial.abort(request)
    active, _, _, held = trial.scheduler.usage()
    assert active == 0
    assert held > 0
    assert trial.scheduler.has_work, "a result is still to come"
    assert_clean(trial)


@pytest.mark.parametrize("max_plans", [1, 2])
def test_abort_in_the_step_in_which_it_finishes_gives_one_end(max_plans: int) -> None:
    trial = Trial(max_plans=max_plans)
    before = trial.submit([1], max_tokens=1)
    trial.plan()
    aborted = trial.abort(before)
    outputs = trial.apply()
    assert outputs is not None
    assert aborted is not None
    assert outputs.finished == []
    after = trial.submit([1], max_tokens=1)
    trial.step()
    assert trial.finished[after].reason is FinishReason.LENGTH
    assert trial.abort(after) is None
    assert_clean(trial)


def test_a_token_for_one_who_left_is_not_given_to_whoever_took_the_slot_meanwhile() -> None:
    trial = Trial(max_plans=2)
    goes = trial.submit([1] * 5, max_tokens=9)
    first = trial.plan()
    trial.abort(goes)
    comes = trial.submit([2] * 5, max_tokens=9)
    second = trial.plan()
    assert first is not None
    assert second is not None
    assert first.slots.tolist() == second.slots.tolist()
    outputs = trial.apply()
    assert outputs is not None
    assert outputs.request_ids.tolist() == []
    assert trial.recorder.snapshot(trial.now).values["paceline:discarded_tokens_total"][()] == 1
    assert_clean(trial)
    trial.assert_solo(comes)


def test_a_token_behind_an_end_is_not_given_to_whoever_took_the_slot_meanwhile() -> None:
    trial = Trial(max_plans=2)
    tokens, _ = solo_tokens(trial.request([1] * 5, max_tokens=9), trial.limits)
    assert tokens[3] not in tokens[:3]
    goes = trial.submit([1] * 5, max_tokens=9, stop_token_ids=(tokens[3],))
    while goes not in trial.finished:
        trial.step()
    behind = trial.plans[-1]
    comes = trial.submit([2] * 5, max_tokens=9)
    plan = trial.plan()
    assert plan is not None
    assert behind.request_ids.tolist() == [goes]
    assert behind.slots.tolist() == plan.slots.tolist()
    outputs = trial.apply()
    assert outputs is not None
    assert outputs.step_id == behind.step_id
    assert outputs.request_ids.tolist() == []
    assert_clean(trial)
    trial.assert_solo(goes)
    trial.assert_solo(comes)


def test_when_a_step_fails_whoever_took_a_slot_meanwhile_begins_where_it_began() -> None:
    trial = Trial(max_plans=2, prefix_caching=False)
    goes = trial.submit([1] * 15, max_tokens=30)
    for _ in range(3):
        trial.step()
    trial.apply()
    trial.runner.fail_next(Failure.IN_SAMPLE)
    first = trial.plan()
    trial.abort(goes)
    comes = trial.submit([2] * 40, max_tokens=9)
    second = trial.plan()
    assert first is not None
    assert second is not None
    assert first.slots.tolist() == second.slots.tolist()
    assert first.starts[0] > second.starts[0] == 0
    trial.scheduler.fail_step(first.step_id)
    (described,) = trial.scheduler.describe(trial.now)
    assert (described["id"], described["num_computed_tokens"]) == (comes, 0)


@pytest.mark.parametrize("max_plans", [1, 2])
def test_abort_twice_gives_one_end(max_plans: int) -> None:
    trial = Trial(max_plans=max_plans)
    request = trial.submit([1], max_tokens=9)
    trial.step()
    trial.plan()
    assert trial.abort(request) is not None
    assert trial.abort(request) is None
    assert_clean(trial)


@pytest.mark.parametrize("max_plans", [1, 2])
def test_abort_while_it_is_preempted(max_plans: int) -> None:
    trial = Trial(tiny_limits(num_blocks=7, block_size=8), watermark="0", max_plans=max_plans)
    trial.expect_short_outputs()
    for number in range(3):
        trial.submit([number] * 9, max_tokens=30)
    found: list[int] = []
    while not found:
        trial.step()
        found = [r["id"] for r in trial.scheduler.describe(0.0) if r["state"] == "preempted"]
    finished = trial.abort(found[0])
    assert finished is not None
    assert finished.num_output_tokens == len(trial.outputs[found[0]])
    assert_clean(trial)


@pytest.mark.parametrize("max_plans", [1, 2])
def test_abort_after_a_failed_step(max_plans: int) -> None:
    trial = Trial(max_plans=max_plans)
    ids = [trial.submit([1] * 20, max_tokens=9) for _ in range(3)]
    trial.runner.fail_next(Failure.IN_FORWARD)
    trial.step()
    trial.abort(ids[0])
    assert_clean(trial)
    trial.assert_solo(ids[1])
    trial.assert_solo(ids[2])


def test_abort_of_everybody_returns_usage_and_gauges_to_zero() -> None:
    trial = Trial(max_num_seqs=4)
    ids = [trial.submit([number] * 20, max_tokens=50) for number in range(12)]
    for _ in range(7):
        trial.step()
    for request_id in ids:
        trial.abort(request_id)
    assert not trial.scheduler.has_work
    assert trial.scheduler.num_running == trial.scheduler.num_waiting == 0
    assert_clean(trial)


@pytest.mark.slow
def test_while_there_is_work_a_plan_can_be_made_or_a_result_is_due() -> None:
    # Not "running 0, waiting 6" for minutes. `Trial.run` fails on a turn without progress.
    for num_blocks in range(5, 12):
        trial = Trial(tiny_limits(num_blocks=num_blocks, block_size=8), max_num_batched_tokens=5)
        trial.expect_short_outputs()
        for number in range(6):
            trial.submit([number % 2] * (5 * number + 1), max_tokens=6)
        trial.run(2000)
        trial.assert_all_solo()

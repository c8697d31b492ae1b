"""Decodes in lockstep give what a step by step account gives."""

import numpy as np
import pytest

from paceline_engine.core import step_features
from paceline_engine.testing.trial import Trial, tiny_limits

ROOMY = tiny_limits(num_blocks=400, block_size=8)


def lockstep(limits=ROOMY, **settings) -> Trial:
    return Trial(limits, is_checked=False, **settings)


def is_steady(trial: Trial) -> bool:
    return trial.scheduler._state.steady is not None


def test_decodes_that_go_on_are_in_lockstep_over_block_boundaries_until_one_ends() -> None:
    trial = lockstep()
    for number in range(5):
        trial.submit([number] * (3 + number), max_tokens=60 + number)
    trial.step()
    trial.step()
    for _ in range(55):
        trial.step()
        assert is_steady(trial)
    trial.scheduler.check()
    trial.run()
    trial.scheduler.check()
    trial.assert_all_solo()


@pytest.mark.parametrize("at", range(1, 20))
def test_whoever_looks_in_between_sees_the_same_numbers(at: int) -> None:
    trial = lockstep()
    ids = [trial.submit([number] * 11, max_tokens=40) for number in range(3)]
    for _ in range(at):
        trial.step()
    for described, request_id in zip(trial.scheduler.describe(0.0), ids, strict=True):
        assert described["num_output_tokens"] == len(trial.outputs[request_id]) == at
        assert described["num_computed_tokens"] == 11 + at - 1
        assert described["num_blocks"] == -(-(11 + at - 1) // 8)
    trial.scheduler.check()
    trial.run()
    trial.assert_all_solo()


@pytest.mark.parametrize("at", [1, 5, 6, 13, 14, 30])
def test_an_abort_between_plan_and_result_ends_the_lockstep_cleanly(at: int) -> None:
    trial = lockstep()
    stays, goes = (trial.submit([number] * 11, max_tokens=50) for number in range(2))
    for _ in range(at):
        trial.step()
    trial.plan()
    trial.abort(goes)
    trial.scheduler.check()
    trial.apply()
    trial.scheduler.check()
    trial.run()
    trial.assert_solo(stays)


@pytest.mark.parametrize("looks_in_between", [False, True])
@pytest.mark.parametrize("at", [1, 7, 8, 31, 32, 33, 39, 40, 41, 64, 75])
def test_the_arrays_know_every_token_however_long_the_lockstep_lasts(
    at: int, looks_in_between: bool
) -> None:
    trial = lockstep()
    lengths = (1, 3, 8, 11, 16)
    ids = [trial.submit([n] * n, max_tokens=90) for n in lengths]
    for number in range(at):
        trial.step()
        if looks_in_between and number % 7 == 3:
            trial.scheduler.check()
    state = trial.scheduler._state
    assert is_steady(trial) or at == 1
    state.settle()
    for n, request_id in zip(lengths, ids, strict=True):
        slot = state.requests[request_id].slot
        assert state.slots.known_tokens(slot).tolist() == [n] * n + trial.outputs[request_id]


@pytest.mark.parametrize("at", [20, 33, 41, 72])
def test_every_block_that_fills_in_lockstep_is_named_after_its_tokens(at: int) -> None:
    trial = lockstep()
    lengths = (1, 3, 8, 11, 16)
    ids = [trial.submit([n] * n, max_tokens=90) for n in lengths]
    for _ in range(at):
        trial.step()
    state = trial.scheduler._state
    state.leave_steady()
    for n, request_id in zip(lengths, ids, strict=True):
        tracked = state.requests[request_id]
        tokens = np.array([n] * n + trial.outputs[request_id], dtype=np.int32)[:-1]
        again = state.cache.chain(-1)
        state.cache.extend(again, tokens)
        assert len(again.keys) == (n + at - 1) // 8
        assert tracked.chain.keys == again.keys
        blocks = state.slots.blocks(tracked.slot).tolist()
        assert [state.pool.find(key) for key in again.keys] == blocks[: len(again.keys)]


def test_an_arrival_joins_a_batch_in_lockstep() -> None:
    trial = lockstep()
    trial.submit([1] * 11, max_tokens=50)
    for _ in range(20):
        trial.step()
    trial.submit([1] * 30, max_tokens=20)
    trial.step()
    assert not is_steady(trial)
    trial.step()
    trial.step()
    assert is_steady(trial)
    trial.run()
    trial.assert_all_solo()


def test_blocks_that_fill_in_lockstep_are_named() -> None:
    trial = lockstep()
    first = trial.submit([1] * 11, max_tokens=60)
    for _ in range(50):
        trial.step()
    assert is_steady(trial)
    prompt = [1] * 11 + trial.outputs[first]
    second = trial.submit(prompt, max_tokens=2)
    trial.run()
    assert trial.cached[second] == (len(prompt) - 1) // 8 * 8
    trial.assert_all_solo()


def test_when_blocks_run_out_the_lockstep_ends_and_somebody_is_preempted() -> None:
    trial = lockstep(tiny_limits(num_blocks=9, block_size=8), watermark="0")
    trial.expect_short_outputs()
    for number in range(4):
        trial.submit([number] * 9, max_tokens=40)
    trial.run()
    assert trial.recorder.snapshot(0.0).values["vllm:num_preemptions_total"][()] > 0
    trial.scheduler.check()
    trial.assert_all_solo()


def test_the_recorder_counts_lockstep_gaps_like_any_other() -> None:
    trial = lockstep()
    for number in range(4):
        trial.submit([number], max_tokens=30)
    trial.run()
    snapshot = trial.recorder.snapshot(trial.now)
    assert sum(snapshot.histograms["vllm:inter_token_latency_seconds"].counts) == 4 * 29
    assert snapshot.values["vllm:generation_tokens_total"][()] == 4 * 30
    assert snapshot.histograms["vllm:inter_token_latency_seconds"].sum == pytest.approx(4 * 0.29)


def test_the_sizes_of_a_lockstep_step_are_those_of_its_plan() -> None:
    trial = lockstep()
    for number in range(5):
        trial.submit([number] * (3 + number), max_tokens=60)
    for _ in range(20):
        plan = trial.step()
        assert plan is not None
        sizes, record = step_features.of(plan), trial.recorder.last_step
        assert record is not None
        assert record.features == sizes
    assert is_steady(trial)

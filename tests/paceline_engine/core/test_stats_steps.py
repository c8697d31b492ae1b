"""The arithmetic of the metrics, through the scheduler and over the fake runner."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from paceline_crds import metrics
from paceline_engine.core.snapshot import StatsSnapshot
from paceline_engine.testing.trial import Trial, tiny_limits


def stats_of(trial: Trial) -> StatsSnapshot:
    return trial.recorder.snapshot(trial.now)


def expected_tokens(trial: Trial, stats: StatsSnapshot) -> float:
    """n(prompt + m - 1) less the cached part, plus what was discarded and computed again."""
    total = sum(
        done.num_prompt_tokens + done.num_output_tokens - 1 - done.num_cached_tokens
        for done in trial.finished.values()
    )
    return total + stats.value(metrics.RECOMPUTED) + stats.value(metrics.DISCARDED)


def assert_idle(trial: Trial) -> None:
    stats = stats_of(trial)
    for name in (metrics.RUNNING, metrics.WAITING, metrics.KV_USAGE, metrics.OLDEST_WAITING):
        assert stats.value(name) == 0, name
    assert set(stats.values.get(metrics.WAITING_BY_REASON, {}).values()) <= {0}
    assert sum(stats.values[metrics.BLOCK_SHARES].values()) == pytest.approx(1.0)


def test_n_requests_of_m_tokens_give_the_promised_counts():
    n, prompt, m = 5, 20, 9
    trial = Trial()
    for i in range(n):
        trial.submit(range(i, i + prompt), max_tokens=m)
    trial.run()
    stats = stats_of(trial)
    assert stats.histogram(metrics.ITL).count == n * (m - 1)
    for name in (
        *(metrics.TTFT, metrics.E2E, metrics.QUEUE_TIME, metrics.PREFILL_TIME),
        *(metrics.DECODE_TIME, metrics.INFERENCE_TIME, metrics.TPOT),
    ):
        assert stats.histogram(name).count == n, name
    assert stats.histogram(metrics.ITERATION_TOKENS).sum == n * (prompt + m - 1)
    assert stats.value(metrics.PROMPT_TOKENS) == n * prompt
    assert stats.value(metrics.GENERATION_TOKENS) == n * m
    assert stats.value(metrics.SUCCESS, finished_reason="length") == n
    assert stats.histogram(metrics.ITERATION_TOKENS).count == stats.value(metrics.STEPS)
    assert_idle(trial)


def test_cached_tokens_are_not_computed_and_are_counted_as_hits():
    trial = Trial()
    trial.submit(range(40), max_tokens=3)
    trial.run()
    trial.submit(range(40), max_tokens=3)
    trial.run()
    stats = stats_of(trial)
    assert stats.value(metrics.PREFIX_HITS) == 32
    assert stats.value(metrics.PREFIX_QUERIES) == 80
    assert stats.histogram(metrics.ITERATION_TOKENS).sum == 2 * 42 - 32
    assert stats.value(metrics.PROMPT_TOKENS) == 80


def test_recomputed_tokens_are_in_the_sum_and_apart():
    trial = Trial(tiny_limits(num_blocks=12), prefix_caching=False)
    for _ in range(20):  # admission learns that outputs are short
        early = trial.submit(range(10), max_tokens=60)
        trial.step()
        trial.stop(early, 1)
    for i in range(4):
        trial.submit(range(10 * i, 10 * i + 10), max_tokens=30)
    trial.run()
    stats = stats_of(trial)
    assert stats.value(metrics.PREEMPTIONS) > 0
    assert stats.value(metrics.RECOMPUTED) > 0
    assert stats.value(metrics.PREFIX_HITS) == 0, "what a preempted request kept is no hit"
    assert stats.histogram(metrics.ITERATION_TOKENS).sum == expected_tokens(trial, stats)
    assert stats.histogram(metrics.REQUEST_PREEMPTIONS).sum == stats.value(metrics.PREEMPTIONS)
    assert stats.histogram(metrics.ITL).count == 4 * 29
    assert_idle(trial)


def test_tokens_behind_a_stop_string_are_discarded_and_never_generated():
    trial = Trial()
    request = replace(trial.request(range(20), max_tokens=30), has_stop_strings=True)
    assert trial.offer(request) is None
    for _ in range(8):
        trial.step()
    trial.stop(request.request_id, 5)
    trial.run()
    stats = stats_of(trial)
    assert stats.value(metrics.GENERATION_TOKENS) == 5
    assert stats.value(metrics.DISCARDED) == 3
    assert stats.histogram(metrics.ITERATION_TOKENS).sum == expected_tokens(trial, stats)
    assert_idle(trial)


@pytest.mark.parametrize("word", ["found", "none", "gone"])
def test_a_request_that_ends_by_length_counts_what_its_reader_says(word):
    trial = Trial()
    request = replace(trial.request(range(20), max_tokens=8), has_stop_strings=True)
    assert trial.offer(request) is None
    trial.run()
    stats = stats_of(trial)
    assert stats.value(metrics.GENERATION_TOKENS) == 0
    assert_idle(trial)
    if word == "gone":
        assert trial.abort(request.request_id) is None
    elif word == "none":
        assert trial.scheduler.finish(request.request_id, 8, trial.now, found_stop=False) is None
    else:
        assert trial.stop(request.request_id, 5) is None
    stats = stats_of(trial)
    counted = 5 if word == "found" else 8
    assert stats.value(metrics.GENERATION_TOKENS) == counted
    assert stats.value(metrics.DISCARDED) == 8 - counted
    assert stats.histogram(metrics.REQUEST_GENERATION_TOKENS).sum == counted
    reason = "stop" if word == "found" else "length"
    assert stats.value(metrics.SUCCESS, finished_reason=reason) == 1
    trial.abort(request.request_id)
    assert stats_of(trial).value(metrics.GENERATION_TOKENS) == counted
    assert_idle(trial)


def test_a_stop_while_a_step_runs_discards_what_that_step_gives():
    trial = Trial()
    request = replace(trial.request(range(20), max_tokens=30), has_stop_strings=True)
    assert trial.offer(request) is None
    trial.step()
    trial.step()
    trial.plan()
    trial.stop(request.request_id, 2)
    trial.apply()
    stats = stats_of(trial)
    assert stats.value(metrics.GENERATION_TOKENS) == 2
    assert stats.value(metrics.DISCARDED) == 1
    assert stats.histogram(metrics.ITERATION_TOKENS).sum == expected_tokens(trial, stats)


@pytest.mark.parametrize("when", ["queued", "running", "between plan and result"])
def test_gauges_return_to_zero_after_every_client_has_gone(when):
    trial = Trial(max_num_seqs=2)
    ids = [trial.submit(range(i, i + 30), max_tokens=50) for i in range(5)]
    if when != "queued":
        trial.step()
        trial.step()
    if when == "between plan and result":
        trial.plan()
    for request_id in ids:
        trial.abort(request_id)
    if when == "between plan and result":
        trial.apply()
    trial.run()
    assert_idle(trial)
    assert stats_of(trial).value(metrics.SUCCESS, finished_reason="abort") == 5


@pytest.mark.slow
@hypothesis_settings(max_examples=30, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(0, 1)),
        min_size=1,
        max_size=8,
    ),
    num_blocks=st.integers(9, 30),
    budget=st.integers(1, 64),
    has_cache=st.booleans(),
)
def test_the_arithmetic_holds_whatever_the_memory_the_budget_and_the_cache(
    shapes, num_blocks, budget, has_cache
):
    trial = Trial(
        tiny_limits(num_blocks=num_blocks),
        max_num_batched_tokens=budget,
        prefix_caching=has_cache,
    )
    for prompt, outputs, kind in shapes:
        trial.submit([kind] * prompt, max_tokens=outputs)
    trial.run()
    stats = stats_of(trial)
    assert stats.histogram(metrics.ITERATION_TOKENS).sum == expected_tokens(trial, stats)
    assert stats.histogram(metrics.ITL).count == sum(m - 1 for _, m, _ in shapes)
    assert stats.histogram(metrics.TTFT).count == len(shapes)
    assert stats.value(metrics.GENERATION_TOKENS) == sum(m for _, m, _ in shapes)
    assert stats.value(metrics.PROMPT_TOKENS) == sum(p for p, _, _ in shapes)
    assert_idle(trial)

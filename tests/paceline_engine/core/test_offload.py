"""KV blocks that the device gave up come back from the host, and never with other tokens."""

from collections.abc import Callable
from typing import Any

import pytest

from paceline_crds import metrics
from paceline_crds.settings import SchedulingPolicy
from paceline_engine.core.plan import StepPlan
from paceline_engine.core.request import FinishReason
from paceline_engine.core.step_features import StepFeatures
from paceline_engine.testing.fake_runner import Failure, solo_prompt_logprobs
from paceline_engine.testing.trial import Trial, tiny_limits

LONG = [(7 * i) % 97 for i in range(40)]


def trial_with(num_host_blocks: int, *, num_blocks: int = 13, **settings: Any) -> Trial:
    """Twelve blocks of eight tokens; who has the smaller priority takes them from others."""
    settings = {
        "watermark": "0",
        "scheduling_policy": SchedulingPolicy.PRIORITY,
        "priority_aging_s": 0,
    } | settings
    limits = tiny_limits(num_blocks=num_blocks, num_host_blocks=num_host_blocks)
    return Trial(limits, **settings)


def value(trial: Trial, name: str) -> float:
    return trial.recorder.snapshot(trial.now).value(name)


def step_until_loads(trial: Trial) -> StepPlan:
    """Plan up to the first step that loads; its result is outstanding, if it did not fail."""
    for _ in range(200):
        plan = trial.plan()
        if plan is not None and len(plan.load_slots):
            return plan
        if trial.num_in_flight:
            trial.apply()
    raise AssertionError("nothing was loaded")


def crowd(trial: Trial, **fields: Any) -> int:
    """A long request, and a better one that grows until it has every block; returns the first."""
    trial.expect_short_outputs()
    long = trial.submit(LONG, max_tokens=50, priority=5, **fields)
    trial.submit([90] * 16, max_tokens=75, priority=-1)
    return long


def step_until(trial: Trial, holds: Callable[[], Any]) -> None:
    for _ in range(200):
        if holds():
            return
        trial.step()
    raise AssertionError("it never happened")


def step_until_preempted(trial: Trial, request_id: int) -> None:
    step_until(trial, lambda: described(trial, request_id)["state"] == "preempted")


def described(trial: Trial, request_id: int) -> dict[str, Any]:
    return next(row for row in trial.scheduler.describe(0.0) if row["id"] == request_id)


@pytest.mark.parametrize("max_plans", [1, 2])
def test_a_preempted_long_request_comes_back_without_recompute(max_plans: int) -> None:
    recomputed = {}
    for num_host_blocks in (0, 40):
        trial = trial_with(num_host_blocks, max_plans=max_plans)
        crowd(trial)
        trial.run()
        trial.assert_all_solo()
        assert value(trial, metrics.PREEMPTIONS) >= 1
        recomputed[num_host_blocks] = value(trial, metrics.RECOMPUTED)
    assert recomputed[0] > len(LONG)
    assert recomputed[40] <= trial.limits.block_size, "only what fills no named block"
    saved = value(trial, metrics.OFFLOAD_SAVED)
    assert saved == trial.runner.num_loaded_blocks * trial.limits.block_size > 0


def test_what_was_copied_and_how_long_it_took_is_counted() -> None:
    trial = trial_with(40)
    crowd(trial)
    trial.run()
    stored = sum(len(plan.store_slots) for plan in trial.plans)
    loaded = sum(len(plan.load_slots) for plan in trial.plans)
    assert stored > loaded > 0
    size = trial.limits.block_bytes
    assert value(trial, metrics.OFFLOAD_STORE_BYTES) == stored * size
    assert value(trial, metrics.OFFLOAD_LOAD_BYTES) == loaded * size
    assert value(trial, metrics.OFFLOAD_STORE_TIME) == pytest.approx(stored * 1e-4)
    assert value(trial, metrics.OFFLOAD_LOAD_TIME) == pytest.approx(loaded * 1e-4)
    snapshot = trial.recorder.snapshot(trial.now)
    used = snapshot.value(metrics.OFFLOAD_BLOCKS, state="used")
    assert 0 < used == 40 - snapshot.value(metrics.OFFLOAD_BLOCKS, state="free")
    assert snapshot.value(metrics.OFFLOAD_USAGE) == used / 40
    assert snapshot.histogram(metrics.OFFLOAD_LOAD_SIZE).count == 1
    steps = trial.recorder.steps(1000)
    assert sum(step["num_stored_blocks"] for step in steps) == stored
    assert sum(step["load_ms"] for step in steps) == pytest.approx(loaded * 0.1)


def test_without_a_tier_there_are_no_series_of_one() -> None:
    trial = trial_with(0)
    assert metrics.OFFLOAD_USAGE not in trial.recorder.snapshot(0.0).values


def test_a_new_request_finds_on_the_host_what_the_device_gave_away() -> None:
    trial = trial_with(40)
    trial.submit(LONG, max_tokens=2)
    trial.run()
    trial.submit([3] * 80, max_tokens=2)
    trial.run()
    before = value(trial, metrics.PREFIX_HITS)
    again = trial.submit(LONG, max_tokens=2)
    trial.run()
    trial.assert_all_solo()
    assert trial.cached[again] == 32, "whole blocks, and a token is left to compute"
    on_device = value(trial, metrics.PREFIX_HITS) - before
    assert on_device + value(trial, metrics.EXTERNAL_HITS) == 32
    assert value(trial, metrics.EXTERNAL_HITS) > 0
    assert value(trial, metrics.EXTERNAL_QUERIES) == 40 + 80 + 40 - value(
        trial, metrics.PREFIX_HITS
    )


def test_who_has_another_salt_finds_nothing_there() -> None:
    trial = trial_with(40)
    trial.submit(LONG, max_tokens=2)
    trial.run()
    trial.submit([3] * 80, max_tokens=2)
    trial.run()
    other = trial.submit(LONG, max_tokens=2, cache_salt="x")
    trial.run()
    assert trial.cached[other] == 0
    assert trial.runner.num_loaded_blocks == 0


def test_what_stays_on_the_device_is_not_copied() -> None:
    trial = trial_with(40, num_blocks=64)
    for _ in range(2):
        trial.submit(LONG, max_tokens=2)
        trial.run()
    assert value(trial, metrics.PREFIX_HITS) == 32
    assert all(len(plan.store_slots) == len(plan.load_slots) == 0 for plan in trial.plans)


@pytest.mark.parametrize("num_host_blocks", [1, 2, 3, 5, 8])
def test_a_tier_that_is_too_small_changes_no_token(num_host_blocks: int) -> None:
    trial = trial_with(num_host_blocks)
    crowd(trial)
    trial.run()
    trial.assert_all_solo()


def test_two_that_come_back_in_one_step_load_a_shared_block_once() -> None:
    trial = trial_with(40, num_blocks=20)
    trial.submit(LONG, max_tokens=1)
    trial.run()
    trial.submit([3] * 150, max_tokens=1)
    trial.run()
    for own in (1, 2):
        trial.submit([*LONG[:32], own, own], max_tokens=4)
    plan = step_until_loads(trial)
    assert len(plan.added) == 2
    assert len(plan.load_slots) == 4
    trial.apply()
    trial.run()
    trial.assert_all_solo()


# -- failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize("max_plans", [1, 2])
@pytest.mark.parametrize("fails_late", [False, True])
def test_a_failed_load_lowers_c_to_the_last_good_block_and_loses_nothing(
    failure: Failure, max_plans: int, fails_late: bool
) -> None:
    trial = trial_with(40, max_plans=max_plans, fails_late=fails_late)
    long = crowd(trial)
    step_until_preempted(trial, long)
    step_until(trial, lambda: trial.finished)
    while trial.num_in_flight:
        trial.apply()
    trial.runner.fail_next(failure)
    plan = step_until_loads(trial)
    held = set(plan.load_slots.tolist())
    while trial.num_in_flight:
        trial.apply()
    computed = described(trial, long)["num_computed_tokens"]
    assert computed < len(LONG)
    assert computed == 0, "it had kept nothing"
    loaded = trial.runner.num_loaded_blocks
    assert held
    trial.run()
    trial.assert_all_solo()
    assert trial.runner.num_loaded_blocks == loaded, "nobody asks for those slots again"


def test_who_hit_a_block_that_was_to_be_loaded_falls_back_with_its_owner() -> None:
    trial = trial_with(40, num_blocks=20)
    trial.submit(LONG, max_tokens=1)
    trial.run()
    trial.submit([3] * 150, max_tokens=1)
    trial.run()
    for own in (1, 2):
        trial.submit([*LONG[:32], own, own], max_tokens=4)
    trial.runner.fail_next(Failure.IN_FORWARD)
    plan = trial.plan()
    assert plan is not None
    assert len(plan.load_slots) == 4
    assert [row["num_computed_tokens"] for row in trial.scheduler.describe(0.0)] == [0, 0]
    trial.run()
    trial.assert_all_solo()
    assert trial.runner.num_loaded_blocks == 4, "nobody asks for those slots again"


# -- what it costs ----------------------------------------------------------------------------


def learn(trial: Trial, *, ms_per_token: float) -> None:
    """Teach the cost model that prompt tokens cost so much and nothing else does."""
    for tokens in (8, 16, 64, 128, 8, 32):
        sizes = StepFeatures(
            num_rows=1,
            num_prefill_tokens=tokens,
            num_decode_tokens=0,
            kv_tokens_read=0,
            attention_pairs=0,
            num_sampled=0,
        )
        trial.scheduler.learn(sizes, tokens * ms_per_token)


@pytest.mark.parametrize(("copy_ms", "loads"), [(0.5, True), (500.0, False)])
def test_a_block_is_loaded_only_where_that_is_faster_than_to_compute_it(
    copy_ms: float, loads: bool
) -> None:
    trial = trial_with(40)
    learn(trial, ms_per_token=1.0)
    trial.runner.copy_ms = copy_ms
    crowd(trial)
    trial.run()
    trial.submit([5] * 80, max_tokens=2)  # evicts: the time of a store is known by now
    trial.run()
    trial.submit(LONG, max_tokens=2)
    num_loaded = trial.runner.num_loaded_blocks
    trial.run()
    trial.assert_all_solo()
    assert (trial.runner.num_loaded_blocks > num_loaded) == loads
    assert (value(trial, metrics.OFFLOAD_SKIPPED) == 0) == loads


def test_a_tier_that_was_too_slow_once_is_tried_again() -> None:
    trial = trial_with(40)
    learn(trial, ms_per_token=1.0)
    trial.runner.copy_ms = 20.0
    for number in range(40):
        trial.submit([number] * 80, max_tokens=1)
        trial.run()
    assert value(trial, metrics.OFFLOAD_SKIPPED) > 0
    trial.runner.copy_ms = 0.1
    for number in range(40):
        trial.submit([number] * 80, max_tokens=1)
        trial.run()
    assert any(len(plan.store_slots) for plan in trial.plans[-5:])


def test_the_time_of_copies_is_predicted_apart_from_that_of_the_step() -> None:
    trial = trial_with(40)
    crowd(trial)
    step_until(trial, lambda: any(len(plan.store_slots) for plan in trial.plans))
    plan = trial.plans[-1]
    assert trial.scheduler.predict_copies_ms(plan) == pytest.approx(0.1 * len(plan.store_slots))


# -- settings and limits ----------------------------------------------------------------------


def test_without_prefix_caching_nothing_has_a_name_and_the_tier_rests() -> None:
    trial = trial_with(40, prefix_caching=False)
    step_until_preempted(trial, crowd(trial))
    for _ in range(20):
        trial.step()
    trial.change(prefix_caching=True)
    trial.run()
    trial.assert_all_solo()
    assert trial.runner.num_loaded_blocks == 0


def test_a_reset_of_the_prefix_cache_empties_the_tier() -> None:
    trial = trial_with(40)
    crowd(trial)
    step_until(trial, lambda: value(trial, metrics.OFFLOAD_USAGE))
    trial.scheduler.reset_prefix_cache()
    assert value(trial, metrics.OFFLOAD_USAGE) == 0
    trial.run()
    trial.assert_all_solo()


def test_prompt_logprobs_take_from_the_host_no_more_than_from_the_device() -> None:
    trial = trial_with(40)
    trial.submit(LONG, max_tokens=2)
    trial.run()
    trial.submit([3] * 80, max_tokens=2)
    trial.run()
    asks = trial.submit(LONG, max_tokens=2, prompt_logprobs=0)
    trial.run()
    assert trial.cached[asks] == 0
    assert trial.prompt_logprobs[asks] == solo_prompt_logprobs(trial.requests[asks])


def test_prompt_logprobs_that_are_gathered_let_a_preempted_request_load() -> None:
    trial = trial_with(40)
    long = crowd(trial, prompt_logprobs=0)
    trial.run()
    trial.assert_all_solo()
    assert trial.runner.num_loaded_blocks > 0
    assert trial.prompt_logprobs[long] == solo_prompt_logprobs(trial.requests[long])


# -- PITFALLS 2, 3, 4 -------------------------------------------------------------------------


@pytest.mark.parametrize("policy", SchedulingPolicy)
@pytest.mark.parametrize("max_plans", [1, 2])
def test_a_head_gets_the_blocks_that_those_behind_it_kept_or_load(
    policy: SchedulingPolicy, max_plans: int
) -> None:
    trial = trial_with(40, max_plans=max_plans, scheduling_policy=policy)
    for number in range(3):  # their loads and kept blocks are what the next head needs
        trial.submit([number] * 50, max_tokens=20, priority=number)
    for _ in range(30):
        trial.step()
    trial.submit([50] * 80, max_tokens=8, priority=-1)
    trial.submit([51] * 20, max_tokens=8, priority=3)
    trial.run(max_steps=500)
    trial.assert_all_solo()


def test_blocks_that_a_step_with_loads_holds_are_waited_for() -> None:
    trial = trial_with(40, max_plans=2)
    long = crowd(trial)
    plan = step_until_loads(trial)
    trial.abort(long)
    _, _, _, held = trial.scheduler.usage()
    assert held >= len(plan.load_slots)
    before = value(trial, metrics.PREEMPTIONS)
    trial.submit([33] * 80, max_tokens=2, priority=-2)
    trial.plan()
    assert value(trial, metrics.PREEMPTIONS) == before
    while trial.num_in_flight:
        trial.apply()
    trial.run()
    trial.scheduler.check()


@pytest.mark.parametrize("max_plans", [1, 2])
@pytest.mark.parametrize("when", ["queued", "loading", "loaded", "twice", "failed"])
def test_an_abort_in_every_state_of_a_load_leaves_nothing(max_plans: int, when: str) -> None:
    trial = trial_with(40, max_plans=max_plans)
    long = crowd(trial)
    step_until_preempted(trial, long)
    if when != "queued":
        step_until(trial, lambda: trial.finished)
        if when == "failed":
            trial.runner.fail_next(Failure.IN_SAMPLE)
        step_until_loads(trial)
    if when in {"loaded", "failed"}:
        while trial.num_in_flight:
            trial.apply()
    finished = trial.abort(long)
    assert finished is not None
    assert finished.reason is FinishReason.ABORT
    if when == "twice":
        assert trial.abort(long) is None
    while trial.num_in_flight:
        trial.apply()
    trial.run()
    trial.scheduler.check()
    active, _, _, held = trial.scheduler.usage()
    assert active == held == 0
    again = trial.submit(LONG, max_tokens=4)
    trial.run()
    trial.assert_solo(again)

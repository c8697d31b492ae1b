"""The walk over the queue: look-ahead, a head that does not fit, no deadlock."""

from typing import Any

import pytest

from paceline_crds.settings import SchedulingPolicy
from paceline_engine.core.admission import MAX_PASSES
from paceline_engine.testing.trial import Trial, tiny_limits


def started(trial: Trial) -> list[int]:
    return [added.request_id for plan in trial.plans for added in plan.added]


def test_the_whole_prompt_must_fit_though_only_a_chunk_is_computed_now() -> None:
    trial = Trial(tiny_limits(num_blocks=11, block_size=8), max_num_batched_tokens=16)
    trial.submit([1] * 40, max_tokens=1)
    trial.step()
    trial.submit([2] * 41, max_tokens=1)
    trial.step()
    assert started(trial) == [0]
    trial.run()
    trial.assert_all_solo()


def test_blocks_promised_to_running_requests_are_not_given_to_new_ones() -> None:
    trial = Trial(tiny_limits(num_blocks=11, block_size=8), max_num_batched_tokens=16)
    trial.submit([1] * 48, max_tokens=1)
    trial.step()  # owns 2 of its 6 blocks
    trial.submit([2] * 40, max_tokens=1)
    trial.step()
    assert started(trial) == [0]
    trial.run()
    assert not any(finished.message for finished in trial.finished.values())
    trial.assert_all_solo()


def test_an_expected_share_of_the_output_must_fit_too() -> None:
    trial = Trial(tiny_limits(num_blocks=11, block_size=8))
    trial.submit([1] * 8, max_tokens=48)
    trial.submit([2] * 8, max_tokens=48)
    trial.step()
    assert started(trial) == [0]
    hopeful = Trial(tiny_limits(num_blocks=11, block_size=8))
    hopeful.expect_short_outputs()
    hopeful.submit([1] * 8, max_tokens=48)
    hopeful.submit([2] * 8, max_tokens=48)
    hopeful.step()
    assert started(hopeful) == [0, 1]


def test_the_watermark_keeps_blocks_free_for_running_requests() -> None:
    trial = Trial(tiny_limits(num_blocks=11, block_size=8), watermark="0.5")
    trial.expect_short_outputs()
    for number in range(6):
        trial.submit([number] * 7, max_tokens=20)
    trial.step()
    assert len(started(trial)) == 5
    trial.run()
    trial.assert_all_solo()


def test_if_nothing_runs_the_head_is_admitted_whatever_the_forecast() -> None:
    trial = Trial(tiny_limits(num_blocks=11, block_size=8), watermark="0.9")
    trial.submit([1] * 70, max_tokens=500)
    assert trial.step() is not None
    trial.run()
    trial.assert_all_solo()


def test_smaller_requests_pass_a_head_that_does_not_fit_and_then_it_runs() -> None:
    trial = Trial(tiny_limits(num_blocks=21, block_size=8), watermark="0", prefix_caching=False)
    trial.submit([1] * 95, max_tokens=24)
    trial.step()
    head = trial.submit([2] * 90, max_tokens=1)
    small = [trial.submit([3 + number] * 7, max_tokens=2) for number in range(4)]
    trial.step()
    assert head not in started(trial)
    assert set(small) & set(started(trial))
    trial.run()
    trial.assert_all_solo()


def test_passing_is_bounded_so_that_the_head_is_not_passed_for_ever() -> None:
    limits = tiny_limits(num_blocks=40, block_size=8)
    trial = Trial(limits, watermark="0", prefix_caching=False)
    runner = trial.submit([1] * 100, max_tokens=100)
    trial.step()
    head = trial.submit([2] * 200, max_tokens=1)
    while head not in started(trial):
        trial.submit([3, len(trial.requests) % 90], max_tokens=3)
        trial.step()
    order = started(trial)
    assert order.index(head) - 1 == MAX_PASSES, "the first to start was the one that runs"
    assert runner in trial.finished
    trial.run()
    trial.assert_all_solo()


def test_what_comes_free_later_is_kept_for_the_head() -> None:
    trial = Trial(tiny_limits(num_blocks=13, block_size=8), watermark="0", prefix_caching=False)
    trial.submit([1] * 39, max_tokens=2)  # 5 blocks
    trial.submit([2] * 39, max_tokens=30)  # up to 9 of 12
    trial.expect_short_outputs()
    trial.step()
    head = trial.submit([3] * 80, max_tokens=1)  # 10 blocks
    other = trial.submit([4] * 30, max_tokens=1)  # 4 blocks: more than were free beside the head
    while head not in started(trial):
        trial.step()
        assert other not in started(trial) or head in started(trial)
    trial.run()
    trial.assert_all_solo()


@pytest.mark.parametrize("policy", [SchedulingPolicy.FCFS, SchedulingPolicy.PRIORITY])
@pytest.mark.parametrize("max_plans", [1, 2])
def test_blocks_that_waiting_requests_keep_never_stop_the_head_when_nobody_runs(
    policy: SchedulingPolicy, max_plans: int
) -> None:
    # Not "running 0, waiting N" for ever: what is kept behind the head is taken for it.
    trial = Trial(
        tiny_limits(num_blocks=7, block_size=8),
        watermark="0",
        scheduling_policy=policy,
        max_plans=max_plans,
    )
    trial.expect_short_outputs()
    ids = [trial.submit([n] * 9, max_tokens=30, priority=5 - n) for n in range(3)]
    head = trial.submit([9] * 20, max_tokens=20, priority=0)
    while not sum(r["num_blocks"] for r in trial.scheduler.describe(0.0) if is_preempted(r)):
        trial.step()
    runs = [r["id"] for r in trial.scheduler.describe(0.0) if r["state"] == "running"]
    for request_id in runs:
        trial.abort(request_id)
    keeps = [r["id"] for r in trial.scheduler.describe(0.0) if r["num_blocks"]]
    assert keeps
    trial.run()
    for request_id in {*ids, head} - set(runs):
        trial.assert_solo(request_id)


def test_a_head_of_a_better_level_takes_kept_blocks_while_others_run() -> None:
    trial = Trial(
        tiny_limits(num_blocks=7, block_size=8),
        watermark="0",
        scheduling_policy=SchedulingPolicy.PRIORITY,
        priority_aging_s=0,
        max_num_seqs=2,
    )
    trial.expect_short_outputs()
    trial.submit([1] * 7, max_tokens=20, priority=0)
    keeper = trial.submit([2] * 33, max_tokens=5, priority=5)
    trial.step()
    better = trial.submit([3] * 9, max_tokens=1, priority=1)
    while not any(is_preempted(r) for r in trial.scheduler.describe(0.0)):
        trial.step()
    before = kept(trial, keeper)
    plan = trial.step()
    assert plan is not None
    assert [added.request_id for added in plan.added] == [better]
    assert 0 < kept(trial, keeper) < before
    trial.run()
    trial.assert_all_solo()


def test_a_head_waits_for_held_blocks_and_leaves_kept_ones_alone() -> None:
    trial = Trial(
        tiny_limits(num_blocks=12, block_size=8),
        watermark="0",
        scheduling_policy=SchedulingPolicy.PRIORITY,
        priority_aging_s=0,
        max_plans=2,
    )
    trial.expect_short_outputs()
    trial.submit([1] * 7, max_tokens=20, priority=0)
    goes = trial.submit([4] * 39, max_tokens=20, priority=0)
    keeper = trial.submit([2] * 33, max_tokens=5, priority=5)
    while not any(is_preempted(r) for r in trial.scheduler.describe(0.0)):
        trial.step()
    trial.step()
    if not trial.num_in_flight:
        trial.plan()
    before = kept(trial, keeper)
    trial.abort(goes)
    head = trial.submit([3] * 9, max_tokens=1, priority=1)
    assert trial.scheduler.usage()[3] >= 5, "what comes back with the step is more than enough"
    trial.plan()
    assert kept(trial, keeper) == before > 0
    trial.run()
    trial.assert_solo(head)
    trial.assert_solo(keeper)


def test_a_head_of_the_same_level_waits_for_running_ones_and_leaves_kept_blocks_alone() -> None:
    trial = Trial(tiny_limits(num_blocks=7, block_size=8), watermark="0", max_num_seqs=2)
    trial.expect_short_outputs()
    trial.submit([1] * 7, max_tokens=9)
    keeper = trial.submit([2] * 33, max_tokens=5)
    trial.submit([3] * 9, max_tokens=1)
    while not any(is_preempted(r) for r in trial.scheduler.describe(0.0)):
        trial.step()
    before = kept(trial, keeper)
    while trial.scheduler.num_running:
        assert kept(trial, keeper) in (before, 0)
        trial.step()
    trial.run()
    trial.assert_all_solo()


@pytest.mark.parametrize(("num_blocks", "is_forecast"), [(64, False), (10, True)])
def test_what_runs_is_forecast_only_where_blocks_may_get_short(
    num_blocks: int, is_forecast: bool
) -> None:
    trial = Trial(tiny_limits(num_blocks=num_blocks, block_size=8), is_checked=False)
    for number in range(4):
        trial.submit([number] * 9, max_tokens=30)
        trial.step()
    trial.run()
    trial.assert_all_solo()
    assert (trial.scheduler._state.slots._num_seen >= 0) == is_forecast


def is_preempted(described: dict[str, Any]) -> bool:
    return described["state"] == "preempted"


def kept(trial: Trial, request_id: int) -> int:
    """Blocks of a request that waits; 0 once it runs."""
    rows = [r for r in trial.scheduler.describe(0.0) if r["id"] == request_id]
    return sum(r["num_blocks"] for r in rows if is_preempted(r))

"""Blocks that a request was refused are never given to somebody behind it in the same step."""

import pytest

from paceline_crds.settings import SchedulingPolicy
from paceline_engine.testing.trial import Trial, tiny_limits


@pytest.mark.parametrize("policy", list(SchedulingPolicy)[:2])
def test_a_decode_behind_its_own_victim_does_not_take_what_that_one_gave_up(
    policy: SchedulingPolicy,
) -> None:
    trial = Trial(
        tiny_limits(num_blocks=7, block_size=8),
        is_checked=False,
        watermark="0",
        scheduling_policy=policy,
        priority_aging_s=0,
    )
    trial.expect_short_outputs()
    trial.submit([1] * 9, max_tokens=20, priority=0)
    refused = trial.submit([2] * 12, max_tokens=20, priority=1)
    behind = trial.submit([3] * 12, max_tokens=20, priority=2)
    trial.step()
    state = trial.scheduler._state
    shared = state.slots.blocks(state.requests[behind].slot).tolist()
    state.pool.acquire(shared)  # as if others used them too: it is no victim
    plan = trial.step()
    while plan is not None and refused in plan.request_ids.tolist():
        plan = trial.step()
    assert plan is not None
    described = {r["id"]: r for r in trial.scheduler.describe(trial.now)}
    assert described[refused]["state"] == "preempted"
    assert plan.request_ids.tolist() == [0], "who is behind is at a boundary, too, and waits"
    assert plan.block_ids.tolist() == []
    state.pool.release(shared)
    trial.run()
    trial.assert_all_solo()


def test_a_chunk_behind_one_that_waits_for_held_blocks_does_not_take_the_free_ones() -> None:
    trial = Trial(
        tiny_limits(num_blocks=20, block_size=8),
        is_checked=False,
        max_num_batched_tokens=40,
        long_prefill_tokens=16,
    )
    refused = trial.submit([1] * 48, max_tokens=4)  # takes two blocks a step
    behind = trial.submit([2] * 24, max_tokens=4)  # needs one more
    trial.step()
    pool = trial.scheduler._state.pool
    taken = pool.allocate(pool.num_free - 1)
    pool.hold(taken[:1])
    pool.release(taken[:1])  # one block is free, one is coming
    plan = trial.plan()
    assert plan is None or behind not in plan.request_ids.tolist()
    assert pool.num_free == 1
    pool.unhold(taken[:1])
    plan = trial.step()
    assert plan is not None
    assert refused in plan.request_ids.tolist()
    pool.release(taken[1:])
    trial.run()
    trial.assert_all_solo()

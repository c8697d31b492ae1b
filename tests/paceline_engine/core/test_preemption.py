"""Who loses its blocks, what it keeps, that it always gets on."""

from typing import Any

import pytest

from paceline_crds.settings import SchedulingPolicy
from paceline_engine.core.preemption import MAX_PREEMPTIONS
from paceline_engine.testing.trial import Trial, tiny_limits

TINY = tiny_limits(num_blocks=7, block_size=8)


def crowded(limits=TINY, **settings):
    """A trial that admits more than will fit."""
    settings.setdefault("watermark", "0")
    trial = Trial(limits, **settings)
    trial.expect_short_outputs()
    return trial


def preempted(trial: Trial) -> list[int]:
    return [r["id"] for r in trial.scheduler.describe(0.0) if r["state"] == "preempted"]


def described(trial: Trial, request_id: int) -> dict[str, Any]:
    return next(r for r in trial.scheduler.describe(0.0) if r["id"] == request_id)


def run_until_preempted(trial: Trial, steps: int = 100) -> list[int]:
    for _ in range(steps):
        trial.plan()
        if found := preempted(trial):
            return found
        trial.apply()
    raise AssertionError("nobody was preempted")


def test_the_tail_of_the_running_requests_loses_its_blocks_first() -> None:
    trial = crowded()
    for number in range(3):
        trial.submit([number] * 9, max_tokens=30)
    assert run_until_preempted(trial) == [2]
    trial.apply()
    trial.run()
    trial.assert_all_solo()


def test_under_priority_the_worst_request_loses_its_blocks_and_its_row_of_this_step() -> None:
    trial = crowded(scheduling_policy=SchedulingPolicy.PRIORITY, priority_aging_s=0)
    trial.submit([1] * 9, max_tokens=30, priority=5)
    trial.submit([2] * 7, max_tokens=30, priority=1)
    trial.submit([3] * 9, max_tokens=30, priority=3)
    assert run_until_preempted(trial) == [0]
    plan = trial.plans[-1]
    assert 0 not in plan.request_ids.tolist()
    assert set(plan.removed_slots.tolist()).isdisjoint(plan.slots.tolist())
    trial.apply()
    trial.run()
    trial.assert_all_solo()


def test_a_preempted_request_keeps_its_tokens_and_goes_to_the_front_of_the_queue() -> None:
    trial = crowded(max_num_seqs=3)
    for number in range(5):
        trial.submit([number] * 9, max_tokens=30)
    (victim,) = run_until_preempted(trial)
    told = len(trial.outputs[victim])
    assert told > 0
    trial.apply()
    described = {r["id"]: r for r in trial.scheduler.describe(0.0)}
    assert described[victim]["num_output_tokens"] == told
    assert described[victim]["num_computed_tokens"] == 8 * described[victim]["num_blocks"]
    later = [added for _ in range(200) if (plan := trial.step()) for added in plan.added]
    back = next(added for added in later if added.request_id == victim)
    assert back.token_ids.tolist()[9:] == trial.outputs[victim][:told]
    order = [added.request_id for added in later]
    assert order.index(victim) < min(order.index(3), order.index(4))
    trial.run()
    trial.assert_all_solo()


@pytest.mark.parametrize("max_plans", [1, 2])
def test_a_victim_loses_only_the_tail_that_is_needed_and_goes_on_behind_it(max_plans: int) -> None:
    trial = crowded(prefix_caching=False, max_plans=max_plans)
    trial.submit([1] * 9, max_tokens=30)
    victim = trial.submit([2] * 25, max_tokens=12)
    assert run_until_preempted(trial) == [victim]
    assert described(trial, victim)["num_blocks"] == 3
    assert described(trial, victim)["num_computed_tokens"] == 24
    trial.abort(0)
    trial.run()
    back = [added for plan in trial.plans for added in plan.added if added.request_id == victim]
    assert [added.num_computed_tokens for added in back] == [0, 24]
    trial.assert_solo(victim)
    values = trial.recorder.snapshot(trial.now).values
    assert 0 < values["paceline:recomputed_tokens_total"][()] <= 9 + max_plans


def test_kept_blocks_go_before_a_running_request_the_worst_first_and_tail_first() -> None:
    trial = crowded(tiny_limits(num_blocks=12, block_size=8), prefix_caching=False)
    for number, length in enumerate((9, 9, 17, 33)):
        trial.submit([number] * length, max_tokens=40)
    kept: dict[int, list[int]] = {}
    num_taken = 0
    for _ in range(60):
        trial.step()
        keepers = trial.scheduler._state.keepers
        now = {request_id: list(tracked.kept) for request_id, tracked in keepers.items()}
        for request_id, blocks in kept.items():
            left = now.get(request_id, [])
            assert blocks[: len(left)] == left, "the tail goes first"
            if len(left) < len(blocks):
                num_taken += 1
                better = [i for i in now if i < request_id]
                assert all(now[i] == kept.get(i, now[i]) for i in better), "the worst goes first"
        running = {r["id"] for r in trial.scheduler.describe(0.0) if r["state"] == "running"}
        assert all(i > max(running) or len(b) < 2 for i, b in now.items() if running)
        kept = now
    assert num_taken
    trial.run()
    trial.assert_all_solo()


def test_the_victim_is_who_loses_least_for_each_block() -> None:
    for spares in (False, True):
        trial = crowded(tiny_limits(num_blocks=9, block_size=8))
        trial.submit([1] * 15, max_tokens=20)
        cheap = trial.submit([2] * 9, max_tokens=20)  # two tokens in its last block
        worst = trial.submit([3] * 28, max_tokens=4)
        trial.step()
        if spares:  # it was a victim too often
            trial.scheduler._state.requests[cheap].num_preemptions = MAX_PREEMPTIONS
        assert run_until_preempted(trial) == [worst if spares else cheap]
        trial.apply()
        trial.run()
        trial.assert_all_solo()


def test_a_preempted_request_keeps_its_place_before_later_arrivals() -> None:
    trial = crowded()
    for number in range(3):
        trial.submit([number] * 9, max_tokens=30)
    (victim,) = run_until_preempted(trial)
    later = trial.submit([7], max_tokens=20)
    trial.apply()
    requests = trial.scheduler._state.requests
    num_compared = 0
    while trial.scheduler.has_work:
        trial.step()
        if victim in requests and later in requests:
            assert requests[victim].key < requests[later].key
            num_compared += 1
    assert num_compared
    trial.assert_all_solo()


def test_to_compare_everything_can_be_given_back_and_the_last_runs_out_first() -> None:
    trial = crowded(prefix_caching=False, gives_all_back=True)
    trial.submit([1] * 9, max_tokens=30)
    victim = trial.submit([2] * 25, max_tokens=12)
    assert run_until_preempted(trial) == [victim]
    assert described(trial, victim)["num_blocks"] == 0
    trial.apply()
    trial.run()
    trial.assert_all_solo()


def test_several_victims_keep_their_order() -> None:
    trial = crowded(tiny_limits(num_blocks=9, block_size=8))
    for number in range(4):
        trial.submit([number] * 9, max_tokens=45)
    order: list[int] = []
    for _ in range(200):
        trial.plan()
        waiting = preempted(trial)
        if len(waiting) >= 2:
            state = trial.scheduler._state
            order = [tracked.request_id for tracked in state.queue]
            break
        trial.apply()
    assert order == sorted(order)
    assert len(order) >= 2
    trial.apply()
    trial.run()
    trial.assert_all_solo()


def test_a_preempted_request_finds_its_prefix_in_the_cache() -> None:
    trial = crowded()
    for number in range(3):
        trial.submit([number] * 17, max_tokens=14)
    (victim,) = run_until_preempted(trial)
    trial.apply()
    back = next(
        added
        for _ in range(60)
        if (plan := trial.step())
        for added in plan.added
        if added.request_id == victim
    )
    assert back.num_computed_tokens >= 8
    trial.run()
    trial.assert_all_solo()
    assert trial.finished[victim].num_cached_tokens == 0, "only the first admission counts"


def test_a_request_that_is_its_own_victim_leaves_its_blocks_to_better_ones() -> None:
    trial = crowded(tiny_limits(num_blocks=5, block_size=8))
    trial.submit([1] * 8, max_tokens=24)
    trial.submit([2] * 9, max_tokens=16)
    assert run_until_preempted(trial) == [1]
    trial.apply()
    trial.run()
    trial.assert_all_solo()


def test_requests_do_not_preempt_each_other_in_circles() -> None:
    trial = crowded(tiny_limits(num_blocks=9, block_size=8), max_num_seqs=8)
    for number in range(8):
        trial.submit([number] * 9, max_tokens=40)
    steps = trial.run()
    trial.assert_all_solo()
    # Each one alone takes about 42 steps; circles would take many times that.
    assert steps < 8 * 42 * 2


def test_admissions_slow_down_after_a_preemption() -> None:
    trial = crowded(max_num_seqs=8)
    for number in range(3):
        trial.submit([number] * 9, max_tokens=30)
    run_until_preempted(trial)
    trial.apply()
    for number in range(4):
        trial.submit([number], max_tokens=1)
    for _ in range(8):
        plan = trial.step()
        assert plan is not None
        assert len(plan.added) <= 1
    trial.run()
    trial.assert_all_solo()


def test_after_a_preemption_one_request_a_step_is_admitted_though_all_would_fit() -> None:
    num_admitted = []
    for has_preempted in (False, True):
        trial = Trial()
        trial.submit([1] * 9, max_tokens=30)
        trial.step()
        trial.scheduler._state.brake.step(has_preempted=has_preempted)
        for number in range(4):
            trial.submit([number], max_tokens=1)
        plan = trial.step()
        assert plan is not None
        num_admitted.append(len(plan.added))
        trial.run()
        trial.assert_all_solo()
    assert num_admitted == [4, 1]


def test_a_step_that_preempts_admits_nobody_though_a_seat_and_blocks_came_free() -> None:
    trial = crowded(scheduling_policy=SchedulingPolicy.PRIORITY, priority_aging_s=0, max_num_seqs=2)
    trial.submit([1] * 7, max_tokens=20, priority=0)
    victim = trial.submit([2] * 33, max_tokens=5, priority=5)
    trial.step()
    waits = trial.submit([3], max_tokens=1, priority=1)
    assert run_until_preempted(trial) == [victim]
    assert trial.plans[-1].added == ()
    trial.apply()
    plan = trial.step()
    assert plan is not None
    assert [added.request_id for added in plan.added] == [waits]
    trial.run()
    trial.assert_all_solo()


def test_held_blocks_are_waited_for_instead_of_preempting_more() -> None:
    trial = crowded(tiny_limits(num_blocks=10, block_size=8), max_plans=2)
    for number in range(4):
        trial.submit([number] * 15, max_tokens=30)
    trial.plan()
    trial.plan()
    while not preempted(trial):
        trial.apply()
        trial.plan()
    # The step in flight still reads what the victim had: held, not free, and one victim is enough.
    assert trial.scheduler.usage()[3] > 0
    assert len(preempted(trial)) == 1
    trial.run()
    trial.assert_all_solo()


def test_a_victim_whose_blocks_are_all_shared_is_left_alone() -> None:
    trial = crowded(is_checked=False)
    for number, length in enumerate((12, 12, 9)):
        trial.submit([number] * length, max_tokens=30)
    trial.step()
    state = trial.scheduler._state
    shared = state.slots.blocks(state.requests[2].slot).tolist()
    state.pool.acquire(shared)  # as if others used them too: the tail has nothing to give
    assert run_until_preempted(trial) == [1]
    state.pool.release(shared)
    trial.apply()
    trial.run()
    trial.assert_all_solo()


def test_recomputed_tokens_are_counted() -> None:
    trial = crowded(prefix_caching=False)
    for number in range(3):
        trial.submit([number] * 9, max_tokens=30)
    trial.run()
    values = trial.recorder.snapshot(trial.now).values
    assert values["vllm:num_preemptions_total"][()] > 0
    assert values["paceline:recomputed_tokens_total"][()] > 0
    in_steps = sum(step["num_recomputed_tokens"] for step in trial.recorder.steps(10_000))
    assert in_steps == values["paceline:recomputed_tokens_total"][()]

"""Policy Fair in the scheduler: shares, caps, seats that change hands, live changes."""

from collections import Counter
from typing import Any

import pytest

from paceline_crds import metrics
from paceline_crds.settings import SchedulingPolicy
from paceline_engine.core.accounts import MAX_TENANTS
from paceline_engine.core.fair import RELIEF_STEPS
from paceline_engine.testing.trial import Trial, tiny_limits

FAIR = SchedulingPolicy.FAIR
GOLD = [{"name": "gold", "weight": 3}]


def fair_trial(**settings: Any) -> Trial:
    limits = tiny_limits(num_blocks=settings.pop("num_blocks", 400), max_slots=8)
    return Trial(limits, scheduling_policy=FAIR, **settings)


def served(trial: Trial, tenant: str) -> int:
    values = trial.recorder.snapshot(trial.now).values[metrics.SERVED_TOKENS]
    return int(sum(count for (name, _), count in values.items() if name == tenant))


def running(trial: Trial) -> Counter[str]:
    """Requests that run, by tenant."""
    return Counter(
        item["tenant"] for item in trial.scheduler.describe(trial.now) if item["state"] == "running"
    )


def state_of(trial: Trial, request_id: int) -> dict[str, Any]:
    return next(item for item in trial.scheduler.describe(trial.now) if item["id"] == request_id)


@pytest.mark.slow
def test_backlogged_tenants_are_served_by_their_weights() -> None:
    trial = fair_trial(tenants=GOLD, max_num_seqs=4, prefix_caching=False, is_checked=False)
    for number in range(220):
        for tenant in ("free", "gold"):
            trial.submit([number % 97] * 12, max_tokens=6, tenant=tenant)
    for _ in range(200):
        trial.step()
    gold, free = served(trial, "gold"), served(trial, "free")
    assert free > 300
    assert gold / free == pytest.approx(3, rel=0.05)


@pytest.mark.slow
def test_a_tenant_that_asks_for_more_at_once_gets_no_more() -> None:
    trial = fair_trial(max_num_seqs=6, prefix_caching=False, is_checked=False)
    for number in range(60):
        trial.submit([number] * 20, max_tokens=20, tenant="large")
        for part in range(8):
            trial.submit([number] * 2, max_tokens=2, tenant="small", priority=part % 2)
    while min(served(trial, "large"), served(trial, "small")) < 500:
        trial.step()
    assert served(trial, "large") / served(trial, "small") == pytest.approx(1, rel=0.1)


def test_what_nobody_else_wants_a_tenant_may_have() -> None:
    trial = fair_trial(tenants=GOLD, max_num_seqs=8)
    for number in range(8):
        trial.submit([number], max_tokens=10, tenant="free")
    trial.step()
    assert running(trial) == {"free": 8}
    trial.run()
    trial.assert_all_solo()


def test_a_new_tenant_does_not_have_to_wait_behind_a_flood() -> None:
    trial = fair_trial(max_num_seqs=2)
    for number in range(50):
        trial.submit([number], max_tokens=3, tenant="flood")
    for _ in range(20):
        trial.step()
    late = trial.submit([1, 2, 3], max_tokens=3, tenant="light")
    for _ in range(RELIEF_STEPS):
        trial.step()
    assert trial.outputs[late]


def test_no_tenant_runs_more_than_its_cap_and_the_reason_is_told() -> None:
    trial = fair_trial(tenants=[{"name": "few", "maxSeqs": 2}], max_num_seqs=8)
    ids = [trial.submit([number], max_tokens=20, tenant="few") for number in range(5)]
    other = trial.submit([9], max_tokens=20, tenant="other")
    for _ in range(10):
        trial.step()
        assert running(trial) == {"few": 2, "other": 1}
    assert state_of(trial, other)["state"] == "running"
    assert [state_of(trial, number)["wait_reason"] for number in ids[2:]] == ["TenantLimit"] * 3
    trial.change(tenants=[{"name": "few", "maxSeqs": 4}])
    trial.step()
    assert running(trial) == {"few": 4, "other": 1}
    trial.run()
    trial.assert_all_solo()


def test_a_share_of_the_budget_is_not_passed_in_any_step() -> None:
    trial = fair_trial(
        tenants=[{"name": "half", "budgetShare": "0.5"}],
        max_num_batched_tokens=20,
        long_prefill_tokens=0,
        prefix_caching=False,
    )
    for number in range(6):
        trial.submit([number] * 30, max_tokens=8, tenant="half")
    while trial.scheduler.has_work:
        plan = trial.step()
        assert plan is not None
        assert plan.total_tokens <= 10
    trial.assert_all_solo()


def test_a_seat_changes_hands_when_none_comes_free() -> None:
    trial = fair_trial(max_num_seqs=4, is_checked=False)
    for number in range(6):
        trial.submit([number] * 4, max_tokens=60, tenant="flood")
    for _ in range(10):
        trial.step()
    late = trial.submit([50], max_tokens=40, tenant="light")
    for _ in range(RELIEF_STEPS + 3):
        trial.step()
    assert state_of(trial, late)["state"] == "running"
    assert running(trial) == {"flood": 3, "light": 1}
    assert trial.recorder.snapshot(0.0).value(metrics.RECOMPUTED) < 8 * 4
    trial.run()
    trial.assert_all_solo()


def test_a_burst_of_who_forwent_its_part_does_not_wait_for_counters() -> None:
    trial = fair_trial(max_num_seqs=4, prefix_caching=False, is_checked=False)
    for number in range(60):
        trial.submit([number] * 8, max_tokens=30, tenant="flood")
    for _ in range(40):
        trial.step()
    burst = [trial.submit([60 + number] * 30, max_tokens=9, tenant="light") for number in range(2)]
    for _ in burst:
        trial.step()
    assert all(trial.outputs[number] for number in burst)
    assert running(trial) == {"flood": 2, "light": 2}
    trial.run()
    trial.assert_all_solo()


def test_seats_do_not_change_hands_back_and_forth() -> None:
    trial = fair_trial(max_num_seqs=4, is_checked=False)
    for number in range(8):
        trial.submit([number], max_tokens=300, tenant="flood")
    trial.step()
    for number in range(8):
        trial.submit([number + 20], max_tokens=300, tenant="late")
    for _ in range(100):
        trial.step()
    trial.scheduler.check()
    assert running(trial) == {"flood": 2, "late": 2}
    assert trial.recorder.snapshot(0.0).value(metrics.PREEMPTIONS) == 2


def test_blocks_change_hands_when_a_prompt_waits_for_them() -> None:
    trial = fair_trial(num_blocks=41, max_num_seqs=8, watermark="0", is_checked=False)
    for number in range(4):
        trial.submit([number] * 70, max_tokens=100, tenant="flood")
    for _ in range(8):
        trial.step()
    late = trial.submit([50] * 100, max_tokens=4, tenant="light")
    for _ in range(60):
        trial.step()
        if trial.outputs[late]:
            break
    assert trial.outputs[late], "the prompt never got its blocks"
    trial.run()
    trial.assert_all_solo()


def test_who_is_next_takes_what_an_equal_kept_when_nobody_runs() -> None:
    # Tenants of one quantum are equals and the keeper is older; it must not stop the queue.
    trial = fair_trial(num_blocks=7, max_num_seqs=2, watermark="0")
    trial.expect_short_outputs()
    runs = trial.submit([1] * 7, max_tokens=20, tenant="flood")
    keeper = trial.submit([2] * 33, max_tokens=5, tenant="flood")
    trial.step()
    while state_of(trial, keeper)["state"] == "running":
        trial.step()
    trial.abort(runs)
    before = state_of(trial, keeper)["num_blocks"]
    light = trial.submit([3] * 30, max_tokens=1, tenant="light")
    plan = trial.step()
    assert plan is not None
    assert [added.request_id for added in plan.added] == [light]
    assert 0 < state_of(trial, keeper)["num_blocks"] < before
    trial.run()
    trial.assert_solo(keeper)


def test_inside_a_tenant_priority_decides_and_between_tenants_it_does_not() -> None:
    trial = fair_trial(max_num_seqs=1, priority_aging_s=0)
    for number, (tenant, priority) in enumerate(
        [("a", 5), ("a", 1), ("b", -9), ("b", -9), ("a", 3)]
    ):
        trial.submit([number], max_tokens=2, tenant=tenant, priority=priority)
    trial.run()
    order = [added.request_id for plan in trial.plans for added in plan.added]
    assert [number for number in order if number in {0, 1, 4}] == [1, 4, 0]
    assert sorted(order[:2]) == [1, 2] or sorted(order[:2]) == [1, 3]


def test_a_full_queue_is_full_for_who_filled_it() -> None:
    trial = fair_trial(max_num_seqs=1, queue_max_requests=10)
    trial.submit([1], max_tokens=500, tenant="flood")
    trial.step()
    for number in range(10):
        trial.submit([number], tenant="flood")
    refusal = trial.offer(trial.request([1], tenant="flood"))
    assert refusal is not None
    assert refusal.status == 429
    assert "flood" in refusal.message
    assert refusal.retry_after_s
    for number in range(5):
        trial.submit([number], tenant="light")
    refusal = trial.offer(trial.request([1], tenant="light"))
    assert refusal is not None
    assert refusal.status == 429
    for number in range(5):
        trial.submit([number], tenant=f"other {number}")
    refusal = trial.offer(trial.request([1], tenant="last"))
    assert refusal is not None
    assert refusal.status == 503


def test_a_full_queue_by_tokens_is_full_for_who_filled_it() -> None:
    trial = fair_trial(max_num_seqs=1, queue_max_tokens=100)
    trial.submit([1], max_tokens=500, tenant="flood")
    trial.step()
    trial.submit([2] * 90, tenant="flood")
    refusal = trial.offer(trial.request([1] * 20, tenant="flood"))
    assert refusal is not None
    assert refusal.status == 429
    trial.submit([1] * 20, tenant="light")


def test_the_policy_comes_and_goes_while_requests_run_and_wait() -> None:
    trial = Trial(tiny_limits(num_blocks=60, max_slots=4), max_num_seqs=3)
    for number in range(12):
        trial.submit([number] * (number + 3), max_tokens=20, tenant="ab"[number % 2])
    policies = [FAIR, SchedulingPolicy.FCFS, FAIR, SchedulingPolicy.PRIORITY, FAIR]
    for number, policy in enumerate(policies):
        trial.step()
        trial.step()
        trial.change(scheduling_policy=policy, tenants=[{"name": "a", "weight": 1 + number}])
    trial.run()
    trial.assert_all_solo()


@pytest.mark.slow
def test_the_policy_may_come_when_more_tenants_wait_than_are_told_apart() -> None:
    trial = Trial(tiny_limits(max_slots=4), max_num_seqs=1, is_checked=False)
    for number in range(MAX_TENANTS + 20):
        trial.submit([number % 97], max_tokens=1, tenant=f"t{number}")
    trial.step()
    trial.change(scheduling_policy=FAIR)
    trial.scheduler.check()
    book = trial.scheduler._state.fair
    assert book is not None
    assert len(book.accounts) == MAX_TENANTS + 1
    trial.run()
    trial.assert_all_solo()


@pytest.mark.slow
def test_a_changed_weight_counts_from_then_on() -> None:
    trial = fair_trial(tenants=GOLD, max_num_seqs=4, prefix_caching=False, is_checked=False)
    for number in range(300):
        for tenant in ("gold", "free"):
            trial.submit([number % 97] * 12, max_tokens=6, tenant=tenant)
    for _ in range(100):
        trial.step()
    trial.change(tenants=[{"name": "gold", "weight": 1}])
    before = served(trial, "gold"), served(trial, "free")
    for _ in range(200):
        trial.step()
    gold, free = served(trial, "gold") - before[0], served(trial, "free") - before[1]
    assert gold / free == pytest.approx(1, rel=0.05)


def test_running_prompts_of_a_flood_leave_room_for_a_prompt_that_waits() -> None:
    trial = fair_trial(max_num_batched_tokens=32, long_prefill_tokens=0, prefix_caching=False)
    for number in range(4):
        trial.submit([number] * 400, max_tokens=2, tenant="flood")
    for _ in range(3):
        trial.step()
    late = trial.submit([50] * 30, max_tokens=2, tenant="light")
    for _ in range(4):
        trial.step()
    assert trial.outputs[late], "it waits for the flood's prompts"


def test_a_batch_that_goes_on_is_left_alone_whoever_waits() -> None:
    trial = fair_trial(max_num_seqs=4, is_checked=False)
    for number in range(12):
        trial.submit([number], max_tokens=190, tenant="ab"[number % 2])
    for _ in range(12):
        trial.step()
    state = trial.scheduler._state
    batch, book = state.steady, state.fair
    assert batch is not None
    assert book is not None
    looks = 0
    for _ in range(160):
        before = book._check_step
        trial.step()
        looks += book._check_step != before
        assert state.steady is batch, "the batch was broken up though nothing changed"
    assert looks <= 5
    state.settle()
    book.settle(state.slots)
    a, b = book.accounts.of("a"), book.accounts.of("b")
    assert a.counter == b.counter > 2 * 2 * 160


@pytest.mark.slow
def test_when_the_budget_is_short_decodes_of_who_got_least_come_first() -> None:
    trial = fair_trial(tenants=[{"name": "gold", "weight": 7}], prefix_caching=False)
    ids = [trial.submit([number], max_tokens=200, tenant="gold") for number in range(2)]
    ids += [trial.submit([number], max_tokens=200, tenant="free") for number in range(2)]
    trial.step()
    trial.change(max_num_batched_tokens=2)
    for _ in range(100):
        trial.step()
    counts = [len(trial.outputs[number]) for number in ids]
    gold, free = sum(counts[:2]), sum(counts[2:])
    assert gold / free == pytest.approx(7, rel=0.1)
    assert abs(counts[0] - counts[1]) <= 1
    assert min(counts) > 5


def test_tenants_do_not_share_prefixes_once_they_are_declared() -> None:
    prompt = list(range(40))
    for tenants, hits in ((None, 32), (GOLD, 0)):
        trial = fair_trial(tenants=tenants)
        trial.submit(prompt, max_tokens=1, tenant="gold")
        trial.run()
        other = trial.submit(prompt, max_tokens=1, tenant="free")
        same = trial.submit(prompt, max_tokens=1, tenant="gold")
        trial.run()
        assert (trial.cached[other], trial.cached[same]) == (hits, 32)


def test_a_salt_of_its_own_wins_over_the_tenant_and_is_never_taken_for_one() -> None:
    prompt = list(range(40))
    trial = fair_trial(tenants=GOLD)
    trial.submit(prompt, max_tokens=1, tenant="gold", cache_salt="both")
    trial.submit(prompt, max_tokens=1, tenant="gold")
    trial.run()
    shared = trial.submit(prompt, max_tokens=1, tenant="free", cache_salt="both")
    forged = trial.submit(prompt, max_tokens=1, tenant="free", cache_salt="gold")
    trial.run()
    assert (trial.cached[shared], trial.cached[forged]) == (32, 0)

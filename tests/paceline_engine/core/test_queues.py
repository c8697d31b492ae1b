"""Order, deadlines and live changes of the waiting queue (SCHEDULER 18, 21, 22)."""

from paceline_crds.settings import SchedulingPolicy
from paceline_engine.core.request import FinishReason
from paceline_engine.testing.trial import Trial, tiny_limits

PRIORITY = SchedulingPolicy.PRIORITY


def order_of_admission(trial: Trial) -> list[int]:
    trial.run()
    return [added.request_id for plan in trial.plans for added in plan.added]


def waiting(trial: Trial) -> list[int]:
    return [tracked.request_id for tracked in trial.scheduler._state.queue]


def test_under_fcfs_requests_start_in_the_order_of_their_arrival() -> None:
    trial = Trial(max_num_seqs=1)
    for number in range(5):
        trial.submit([number], max_tokens=2, priority=-number)
    assert order_of_admission(trial) == [0, 1, 2, 3, 4]


def test_under_priority_the_smallest_number_starts_first_and_equals_by_arrival() -> None:
    trial = Trial(max_num_seqs=1, scheduling_policy=PRIORITY)
    for priority in (3, 1, 2, 1, -5):
        trial.submit([priority + 9], max_tokens=2, priority=priority)
    assert order_of_admission(trial) == [4, 1, 3, 2, 0]


def test_aging_lets_an_old_request_pass_a_better_one() -> None:
    for aging, first in ((10, 0), (0, 1)):
        trial = Trial(max_num_seqs=1, scheduling_policy=PRIORITY, priority_aging_s=aging)
        trial.submit([1], max_tokens=2, priority=4)
        trial.now = 60.0
        trial.submit([2], max_tokens=2, priority=0)
        assert order_of_admission(trial)[0] == first


def test_a_change_of_policy_keeps_everybody_and_the_order_inside_a_class() -> None:
    trial = Trial(max_num_seqs=1)
    for number in range(8):
        trial.submit([number] * (3 if number % 3 else 300), max_tokens=2, priority=number % 2)
    assert waiting(trial) == list(range(8))
    trial.change(scheduling_policy=PRIORITY)
    assert waiting(trial) == [0, 2, 4, 6, 1, 3, 5, 7]
    trial.change(long_prefill_tokens=5)
    assert waiting(trial) == [0, 2, 4, 6, 1, 3, 5, 7]
    trial.change(scheduling_policy=SchedulingPolicy.FCFS)
    assert waiting(trial) == list(range(8))
    trial.run()
    trial.assert_all_solo()


def test_a_request_that_did_not_start_by_its_deadline_is_answered() -> None:
    trial = Trial(max_num_seqs=1)
    running = trial.submit([1], max_tokens=50, deadline_s=0.5)
    late = trial.submit([2], max_tokens=5, deadline_s=0.5)
    patient = trial.submit([3], max_tokens=5)
    trial.step()
    trial.now = 0.4
    assert trial.expire() == []
    trial.now = 0.5
    assert [finished.request_id for finished in trial.expire()] == [late]
    assert trial.finished[late].reason is FinishReason.TIMEOUT
    assert trial.finished[late].message
    assert trial.expire() == []
    trial.run()
    trial.assert_solo(running)
    trial.assert_solo(patient)


def test_the_time_limit_of_the_queue_holds_for_everybody_and_changes_live() -> None:
    trial = Trial(max_num_seqs=1, queue_timeout_s=100)
    trial.submit([1], max_tokens=500)
    trial.step()
    first = trial.submit([2], max_tokens=5)
    trial.now = 50.0
    trial.submit([3], max_tokens=5)
    trial.change(queue_timeout_s=20)
    assert [finished.request_id for finished in trial.expire()] == [first]
    trial.change(queue_timeout_s=0)
    trial.now = 1e6
    assert trial.expire() == []


def test_a_preempted_request_has_started_and_does_not_expire() -> None:
    trial = Trial(tiny_limits(num_blocks=7, block_size=8), watermark="0", queue_timeout_s=1)
    trial.expect_short_outputs()
    for number in range(3):
        trial.submit([number] * 9, max_tokens=30)
    while not any(r["state"] == "preempted" for r in trial.scheduler.describe(0.0)):
        trial.step()
    trial.now = 1e6
    assert trial.expire() == []
    trial.run()
    trial.assert_all_solo()

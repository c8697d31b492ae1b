"""What admission knows and says (SCHEDULER 16, 17, 21)."""

from paceline_engine.core.admission import Brake, DrainRate, ExpectedOutput, refuse_misfit
from paceline_engine.testing.trial import Trial, tiny_limits


def test_expected_output_follows_what_requests_really_used() -> None:
    expected = ExpectedOutput()
    assert expected.forecast(0, 10) == 10
    for _ in range(300):
        expected.observe(20, 1000)
    assert 18 <= expected.forecast(0, 1000) <= 22
    assert expected.forecast(0, 4) <= 1
    assert expected.forecast(15, 1000) <= 7
    assert expected.forecast(500, 1000) == 0
    for _ in range(300):
        expected.observe(900, 1000)
    assert expected.forecast(0, 1000) >= 800


def test_a_request_without_output_teaches_nothing() -> None:
    expected = ExpectedOutput()
    expected.observe(0, 0)
    assert expected.forecast(0, 10) == 10


def test_the_brake_wears_off_without_preemptions() -> None:
    brake = Brake()
    assert not brake.is_on
    assert brake.extra_blocks(100) == 0
    brake.step(has_preempted=True)
    brake.step(has_preempted=True)
    assert brake.is_on
    assert brake.extra_blocks(10) == 10
    for _ in range(64):
        brake.step(has_preempted=False)
    assert not brake.is_on


def test_retry_after_comes_from_the_measured_drain_rate() -> None:
    drain = DrainRate()
    assert drain.retry_after_s(10, 100, 0.0) == 1
    for second in range(20):
        drain.admitted(50, float(second))
    assert 9 <= drain.retry_after_s(10, 1, 20.0) <= 11
    assert drain.retry_after_s(1, 5000, 20.0) > 50
    assert drain.retry_after_s(10_000, 1, 20.0) == 300
    assert 5 <= drain.retry_after_s(10, 1, 40.0) <= 60, "an idle while makes the rate lower"


def test_a_misfit_is_told_both_numbers() -> None:
    assert refuse_misfit(99, 5, 100) is None
    assert refuse_misfit(100, 0, 100) is None
    refusal = refuse_misfit(100, 5, 100)
    assert refusal is not None
    assert refusal.status == 400
    assert "100 tokens" in refusal.message


def test_a_full_queue_refuses_with_retry_after_whatever_the_moment() -> None:
    trial = Trial(max_num_seqs=1, queue_max_requests=2)
    for _ in range(3):
        trial.submit([1], max_tokens=20)
    for _ in range(2):  # before and after the first one took its seat
        refusal = trial.offer(trial.request([1]))
        assert refusal is not None
        assert refusal.status == 503
        assert refusal.retry_after_s is not None
        assert refusal.retry_after_s >= 1
        trial.step()


def test_a_queue_of_zero_still_serves_what_can_start_at_once() -> None:
    trial = Trial(max_num_seqs=2, queue_max_requests=0)
    trial.submit([1], max_tokens=3)
    trial.submit([2], max_tokens=3)
    assert trial.offer(trial.request([3])) is not None
    trial.run()
    trial.submit([4], max_tokens=3)
    trial.run()


def test_waiting_prompt_tokens_are_limited_too() -> None:
    trial = Trial(max_num_seqs=1, queue_max_tokens=100)
    trial.submit([1] * 60, max_tokens=20)
    trial.step()
    trial.submit([1] * 60, max_tokens=20)
    trial.step()
    trial.submit([1] * 40, max_tokens=20)
    refusal = trial.offer(trial.request([1] * 40))
    assert refusal is not None
    assert "100 prompt tokens" in refusal.message


def test_a_limit_that_is_raised_live_takes_requests_again() -> None:
    trial = Trial(max_num_seqs=1, queue_max_requests=1)
    trial.submit([1], max_tokens=20)
    trial.submit([1], max_tokens=20)
    assert trial.offer(trial.request([1])) is not None
    trial.change(queue_max_requests=5)
    trial.submit([1], max_tokens=20)


def test_a_request_longer_than_the_pool_is_refused_and_the_longest_that_fits_runs() -> None:
    # PITFALL 1: it must not sit at the head of the queue for ever.
    trial = Trial(tiny_limits(num_blocks=4, block_size=8))
    refusal = trial.offer(trial.request(range(24), max_tokens=5))
    assert refusal is not None
    assert refusal.status == 400
    assert "24" in refusal.message
    longest = trial.submit(range(23), max_tokens=500)
    behind = trial.submit([1], max_tokens=2)
    trial.run()
    assert trial.finished[longest].num_output_tokens == 1
    trial.assert_solo(behind)

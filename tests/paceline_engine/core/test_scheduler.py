"""A request's way through the scheduler: budget, chunks, ends, refusals (SCHEDULER 1-7, 17)."""

import pytest

from paceline_engine.core.request import FinishReason
from paceline_engine.testing.trial import Trial, tiny_limits


@pytest.mark.parametrize("max_plans", [1, 2])
@pytest.mark.parametrize("num_blocks", [8, 12, 20, 64])
def test_many_requests_get_the_tokens_they_would_get_alone(max_plans: int, num_blocks: int) -> None:
    limits = tiny_limits(num_blocks=num_blocks, vocab_size=50, eos_token_ids=(3,))
    trial = Trial(limits, max_plans=max_plans, max_num_batched_tokens=24, max_num_seqs=8)
    for number in range(12):
        trial.submit([number % 3] * (1 + 5 * number % 37), max_tokens=3 * number % 14)
    trial.run()
    trial.assert_all_solo()


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    trial = Trial(max_num_batched_tokens=16)
    trial.submit(range(40), max_tokens=2)
    plans = [trial.step() for _ in range(3)]
    assert [plan.num_tokens.tolist() for plan in plans if plan] == [[16], [16], [8]]
    assert [plan.samples.tolist() for plan in plans if plan] == [[False], [False], [True]]
    trial.run()
    trial.assert_all_solo()


def test_a_request_that_can_never_fit_is_refused_on_arrival() -> None:
    trial = Trial(tiny_limits(num_blocks=4, block_size=8))
    refusal = trial.offer(trial.request(range(24), max_tokens=5))
    assert refusal is not None
    assert refusal.status == 400
    assert "24" in refusal.message
    longest = trial.submit(range(23), max_tokens=500)
    trial.run()
    assert trial.finished[longest].reason is FinishReason.LENGTH
    assert trial.finished[longest].num_output_tokens == 1

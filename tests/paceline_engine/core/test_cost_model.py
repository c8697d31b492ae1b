import random

import numpy as np
import pytest

from paceline_engine.core.cost_model import StepCostModel
from paceline_engine.core.step_features import StepFeatures


def sizes(prefill: int, decode: int, context: int = 100) -> StepFeatures:
    """One prompt's first chunk beside decodes of equal context."""
    return StepFeatures(
        num_rows=decode + (prefill > 0),
        num_prefill_tokens=prefill,
        num_decode_tokens=decode,
        kv_tokens_read=prefill + decode * context,
        attention_pairs=prefill * (prefill + 1) // 2 + decode * context,
        num_sampled=decode,
    )


def test_first_steps_are_predicted_long() -> None:
    assert StepCostModel(first_guess_ms=750.0).predict_ms(sizes(10, 1)) == 750.0


def test_it_learns_milliseconds_by_kind_of_work() -> None:
    random_numbers = random.Random(1)
    model = StepCostModel()
    for _ in range(300):
        prefill, decode = random_numbers.choice([0, 0, 64, 512]), random_numbers.randrange(1, 64)
        step = sizes(prefill, decode, context=random_numbers.choice([50, 500, 2000]))
        spent_ms = 2.0 + 0.05 * prefill + 0.3 * decode + 1e-3 * step.kv_tokens_read
        model.observe(step, spent_ms * random_numbers.uniform(0.95, 1.05))
    assert model.predict_ms(sizes(0, 32, 1000)) == pytest.approx(2 + 9.6 + 32, rel=0.07)
    assert model.predict_ms(sizes(512, 0)) == pytest.approx(2 + 25.6 + 0.5, rel=0.07)


def test_a_change_of_speed_is_followed() -> None:
    model = StepCostModel()
    for spent_ms in [1.0] * 300 + [5.0] * 300:
        model.observe(sizes(0, 8), spent_ms)
    assert model.predict_ms(sizes(0, 8)) == pytest.approx(5.0, rel=0.05)


def test_an_hour_of_equal_steps_leaves_the_rest_finite() -> None:
    model = StepCostModel()
    model.observe(sizes(256, 0), 20.0)
    for _ in range(5_000):
        model.observe(sizes(0, 4), 1.0)
    assert model.predict_ms(sizes(0, 4)) == pytest.approx(1.0, rel=0.01)
    model.observe(sizes(256, 0), 20.0)
    model.observe(sizes(256, 0), 20.0)
    assert 0.0 <= model.predict_ms(sizes(512, 0)) < 100.0


def test_more_work_is_never_predicted_to_take_less_time() -> None:
    model = StepCostModel()
    for _ in range(5):
        model.observe(sizes(100, 1), 1.0)
        model.observe(sizes(10, 1), 5.0)
    assert 0.0 <= model.predict_ms(sizes(100, 1)) <= model.predict_ms(sizes(10_000, 1))


@pytest.mark.parametrize("context", [0, 3000])
def test_the_cost_of_more_prompt_tokens_is_the_difference_of_two_predictions(context) -> None:
    rng = np.random.default_rng(5)
    model = StepCostModel()
    for _ in range(200):
        step = sizes(int(rng.integers(0, 600)), int(rng.integers(1, 30)))
        model.observe(step, 3.0 + 0.1 * step.num_tokens + 1e-4 * step.attention_pairs)
    a, b = model.cost(context=context)
    without, n = sizes(0, 8), 200
    more = StepFeatures(
        num_rows=9,
        num_prefill_tokens=n,
        num_decode_tokens=8,
        kv_tokens_read=without.kv_tokens_read + n,
        attention_pairs=without.attention_pairs + n * context + n * (n + 1) // 2,
        num_sampled=8,
    )
    extra = model.predict_ms(more) - model.predict_ms(without)
    assert a * n + b * n * n == pytest.approx(extra, rel=1e-6)

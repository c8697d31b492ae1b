import random

import pytest

from paceline_engine.core.step_time import StepTimeModel


def test_first_steps_are_predicted_long() -> None:
    assert StepTimeModel(first_guess_ms=750.0).predict_ms(10, 1) == 750.0


def test_it_learns_milliseconds_per_token_by_kind() -> None:
    random_numbers = random.Random(1)
    model = StepTimeModel()
    for _ in range(200):
        prefill, decode = random_numbers.choice([0, 0, 64, 512]), random_numbers.randrange(1, 64)
        spent_ms = 2.0 + 0.05 * prefill + 0.3 * decode + random_numbers.uniform(-0.1, 0.1)
        model.observe(prefill, decode, spent_ms)
    assert model.predict_ms(0, 32) == pytest.approx(2.0 + 0.3 * 32, rel=0.05)
    assert model.predict_ms(2048, 0) == pytest.approx(2.0 + 0.05 * 2048, rel=0.05)


def test_a_change_of_speed_is_followed() -> None:
    model = StepTimeModel()
    for spent_ms in [1.0] * 300 + [5.0] * 300:
        model.observe(0, 8, spent_ms)
    assert model.predict_ms(0, 8) == pytest.approx(5.0, rel=0.05)


def test_an_hour_of_equal_steps_leaves_the_rest_finite() -> None:
    model = StepTimeModel()
    model.observe(256, 0, 20.0)
    for _ in range(50_000):
        model.observe(0, 4, 1.0)
    assert model.predict_ms(0, 4) == pytest.approx(1.0, rel=0.01)
    model.observe(256, 0, 20.0)
    model.observe(256, 0, 20.0)
    assert 0.0 <= model.predict_ms(512, 0) < 100.0


def test_a_prediction_is_never_negative() -> None:
    model = StepTimeModel()
    for _ in range(5):
        model.observe(100, 1, 1.0)
        model.observe(10, 1, 5.0)
    assert model.predict_ms(10_000, 0) == 0.0

"""Factors on step times."""

import numpy as np
import pytest

from paceline_engine.sim.jitter import Jitter


def test_stretches_keep_the_order_of_the_recording():
    jitter = Jitter(np.arange(1.0, 501.0), np.random.default_rng(1))
    drawn = np.array([jitter.next() for _ in range(3200)]).reshape(-1, 32)
    steps = np.diff(drawn, axis=1)
    assert set(np.unique(steps)) <= {1.0, -499.0}  # on, or around the end
    assert len(set(drawn[:, 0])) > 50


def test_every_factor_is_drawn_about_equally_often():
    jitter = Jitter(np.arange(1.0, 11.0), np.random.default_rng(2))
    counts = np.bincount([int(jitter.next()) for _ in range(20_000)], minlength=11)[1:]
    assert counts.min() > 0.9 * counts.max()


def test_the_same_seed_gives_the_same_factors():
    one, other = (Jitter(np.array([0.5, 1.0, 2.0]), np.random.default_rng(3)) for _ in range(2))
    assert [one.next() for _ in range(100)] == [other.next() for _ in range(100)]


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [1.0, -2.0]])
def test_factors_must_be_positive(ratios: list[float]):
    with pytest.raises(ValueError, match="positive and not empty"):
        Jitter(np.array(ratios), np.random.default_rng(1))

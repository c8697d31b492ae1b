import math

import pytest

from paceline_operator.decide.tuning.signals import Problem, Signal
from paceline_operator.testing.samples import sample


def test_a_missing_or_undefined_signal_is_none_and_not_zero() -> None:
    one = sample({Signal.ITL_P50: math.nan}, without=frozenset({Signal.WAITING}))
    assert one.get(Signal.WAITING) is None
    assert one.get(Signal.ITL_P50) is None
    assert one.known(Signal.RUNNING, Signal.WAITING) is None
    assert one.ratio(Signal.GOOD, Signal.WAITING) is None


def test_ratio_over_nothing_is_none() -> None:
    assert sample({Signal.JUDGED: 0}).ratio(Signal.GOOD, Signal.JUDGED) is None


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({Signal.PODS: 0}, Problem.PODS_MISSING),
        ({Signal.SCRAPES: 3}, Problem.SCRAPE_TOO_SLOW),
        ({Signal.RESTARTS: 1}, Problem.CROSSES_RESTART),
        ({Signal.SLO_CHANGES: 1}, Problem.CROSSES_SLO_CHANGE),
        ({}, None),
    ],
)
def test_a_window_says_why_it_cannot_be_used(
    changed: dict[Signal, float], problem: Problem | None
) -> None:
    assert sample(changed).problem is problem


def test_a_window_without_series_or_without_pods_has_no_measurement() -> None:
    assert sample(without=frozenset({Signal.SCRAPES})).problem is Problem.NO_SERIES
    assert sample(pods=()).problem is Problem.NO_PODS

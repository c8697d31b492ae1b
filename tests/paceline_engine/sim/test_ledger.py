"""Percentiles of the fine histogram, and gaps of requests that come and go."""

import numpy as np
import pytest

from paceline_engine.core.plan import StepOutputs
from paceline_engine.sim.ledger import FineHistogram, Ledger
from paceline_engine.sim.requests import SimRequest


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.0])
def test_quantiles_are_right_to_half_a_percent(share: float):
    values = np.random.default_rng(1).lognormal(-3, 1, 5000)
    histogram = FineHistogram()
    histogram.add_many(values[:3000])
    for value in values[3000:]:
        histogram.add(float(value), 1)
    exact = np.quantile(values, share, method="inverted_cdf")
    assert histogram.quantile(share) == pytest.approx(exact, rel=0.006)
    assert histogram.count == 5000
    assert histogram.total_s == pytest.approx(values.sum())


def test_an_empty_histogram_has_no_quantiles():
    assert FineHistogram().quantile(0.5) == 0.0


def outputs(ids: np.ndarray) -> StepOutputs:
    return StepOutputs(step_id=0, request_ids=ids, tokens=np.ones((len(ids), 1), dtype=np.int32))


def test_gaps_are_those_of_each_request_whoever_else_is_in_the_step():
    ledger = Ledger()
    asked = SimRequest(arrival_s=0.0, prompt_token_ids=(1,), num_output_tokens=9, max_tokens=9)
    for _ in range(3):
        ledger.arrived(asked)
    pair, first = np.array([0, 1]), np.array([0])
    ledger.tokens(outputs(pair), 1.0)
    ledger.tokens(outputs(pair), 2.0)  # the very same array: all together
    ledger.tokens(outputs(pair), 4.0)
    ledger.tokens(outputs(first), 5.0)
    ledger.tokens(outputs(np.array([1, 2])), 9.0)
    assert [served.first_token_s for served in ledger.served] == [1.0, 1.0, 9.0]
    # 0: 1, 2, 1; 1: 1, 2, 5
    assert ledger.gaps.count == 6
    assert ledger.gaps.total_s == pytest.approx(12.0)
    assert ledger.gaps.max_s == 5.0

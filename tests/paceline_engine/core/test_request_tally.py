"""Histograms of requests that ended, counted late, lose nobody."""

import math

import pytest

from paceline_crds import metrics
from paceline_engine.core.histogram import Histogram
from paceline_engine.core.request_tally import RequestTally

FAMILIES = (
    metrics.E2E,
    metrics.INFERENCE_TIME,
    metrics.DECODE_TIME,
    metrics.TPOT,
    metrics.REQUEST_PROMPT_TOKENS,
    metrics.REQUEST_GENERATION_TOKENS,
    metrics.REQUEST_MAX_TOKENS,
    metrics.REQUEST_MAX_GENERATION,
    metrics.REQUEST_PREEMPTIONS,
)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1000])
def test_every_noted_request_is_counted_once_however_many_there_are(count: int) -> None:
    histograms = {family: Histogram((1.0, 10.0)) for family in FAMILIES}
    tally = RequestTally(histograms)
    for _ in range(count):
        tally.add((0.5, 0.25, math.nan, math.nan, 5, 20, 30, 25, 0))
    tally.settle()
    tally.settle()
    for family, histogram in histograms.items():
        has_none = family in (metrics.DECODE_TIME, metrics.TPOT)
        assert histogram.data().count == (0 if has_none else count)
    assert histograms[metrics.REQUEST_GENERATION_TOKENS].data().counts == [0, 0, count]
    assert histograms[metrics.REQUEST_PROMPT_TOKENS].data().sum == 5 * count

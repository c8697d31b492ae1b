"""Steps that are counted late are all counted, and the last ones are kept."""

import pytest

from paceline_crds import metrics
from paceline_crds.metrics import METRICS
from paceline_engine.core.histogram import Histogram
from paceline_engine.core.step_record import StepRecord
from paceline_engine.core.step_tally import STEPS_KEPT, StepTally

COUNTERS = (metrics.STEPS, metrics.SPEC_DRAFTS, metrics.SPEC_DRAFT_TOKENS, metrics.SPEC_ACCEPTED)
FAMILIES = (
    metrics.ITERATION_TOKENS,
    metrics.STEP_BUDGET_USED,
    metrics.KV_USAGE_HISTOGRAM,
    metrics.STEP_DURATION,
)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 9000])
def test_every_step_is_counted_once_however_many_there_are(count: int) -> None:
    counters = dict.fromkeys(COUNTERS, 0.0)
    histograms = {family: Histogram(METRICS[family].buckets) for family in FAMILIES}
    tally = StepTally(counters, histograms)
    for number in range(count):
        tally.add(
            StepRecord(
                step_id=number,
                planned_s=0.75,
                queued_ms=250.0,
                applied_s=1.5,
                budget_tokens=20 if number else 0,
                num_decode_tokens=4,
                num_drafts=1,
                num_draft_tokens=3,
                num_accepted_tokens=2,
                blocks_active=1,
                blocks_cached=2,
                blocks_free=1,
            )
        )
    tally.settle()
    tally.settle()
    assert list(counters.values()) == [count, count, 3 * count, 2 * count]
    assert histograms[metrics.ITERATION_TOKENS].data().sum == 7 * count
    assert histograms[metrics.STEP_BUDGET_USED].data().count == count - 1
    assert histograms[metrics.KV_USAGE_HISTOGRAM].data().sum == pytest.approx(0.25 * count)
    assert histograms[metrics.STEP_DURATION].data().sum == pytest.approx(0.5 * count)
    assert len(tally.last) == min(count, STEPS_KEPT)
    assert tally.last[-1].step_id == count - 1


def test_what_the_step_loop_adds_to_the_newest_step_is_counted() -> None:
    counters = dict.fromkeys(COUNTERS, 0.0)
    histograms = {family: Histogram(METRICS[family].buckets) for family in FAMILIES}
    tally = StepTally(counters, histograms)
    for number in range(600):
        record = StepRecord(
            step_id=number, planned_s=0.0, applied_s=2.0, budget_tokens=1, blocks_free=1
        )
        tally.add(record)
        record.queued_ms = 1500.0
    tally.settle()
    assert histograms[metrics.STEP_DURATION].data().sum == pytest.approx(0.5 * 600)

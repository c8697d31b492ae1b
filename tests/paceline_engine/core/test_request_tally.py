"""Requests that ended, counted late, lose nobody and mix nobody up."""

import math

import pytest

from paceline_crds import metrics
from paceline_crds.settings import EngineSettings
from paceline_engine.core.request import FinishReason
from paceline_engine.testing.story import Story
from paceline_engine.testing.trial import Trial

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


@pytest.mark.parametrize("count", [1, 255, 256, 257, 600])
def test_every_request_that_ended_is_counted_once_however_many_there_are(count: int) -> None:
    story = Story()
    for number in range(count):
        story.run(number, [0.5, 0.75])
    for _ in range(2):
        stats = story.stats
        assert {stats.histogram(family).count for family in FAMILIES} == {count}
        assert stats.histogram(metrics.E2E).sum == 0.75 * count
        assert stats.histogram(metrics.DECODE_TIME).sum == 0.25 * count
        assert stats.histogram(metrics.REQUEST_PROMPT_TOKENS).sum == 5 * count
        assert stats.histogram(metrics.REQUEST_GENERATION_TOKENS).sum == 2 * count
        assert stats.value(metrics.SUCCESS, finished_reason="stop") == count


def test_requests_that_were_aborted_or_have_no_output_stand_between_others() -> None:
    trial = Trial()
    trial.submit(range(20), max_tokens=4)
    trial.submit(range(30, 40), max_tokens=0)
    trial.step()
    trial.abort(trial.submit(range(50, 60), max_tokens=9))
    trial.run()
    stats = trial.recorder.snapshot(trial.now)
    assert stats.histogram(metrics.E2E).count == 2
    assert stats.histogram(metrics.DECODE_TIME).count == 1
    assert stats.histogram(metrics.PREFILL_TIME).count == 2
    assert stats.value(metrics.PROMPT_TOKENS) == 30
    assert stats.histogram(metrics.REQUEST_PROMPT_TOKENS).sum == 30
    requests = trial.recorder.recording()["requests"]
    assert requests["reason"] == ["length", "length", "abort"]
    assert requests["num_output_tokens"] == [0, 4, 0]
    assert [math.isnan(first) for first in requests["first_token_s"]] == [True, False, True]


def test_a_row_that_is_used_again_knows_nothing_of_the_request_before() -> None:
    story = Story(slo_itl_ms=100)
    story.arrive(1, has_stop_strings=True)
    story.admit(1, 0)
    story.tokens(1.0, s0=1)
    story.recorder.request_preempted(1, 5)
    story.admit(1, 0)
    story.tokens(9.0, s0=1)
    story.finish(1, 2, 9.0)
    assert story.stats.value(metrics.SLO_REQUESTS, result="bad") == 1
    rows = story.recorder._rows
    assert rows.num_with_stop_strings == 0
    for number in range(2, 2 + rows.capacity):  # every row there is
        story.run(number, [0.5, 0.55])
        stats = story.stats
    assert rows.capacity == 16
    assert stats.histogram(metrics.REQUEST_PREEMPTIONS).sum == 1
    assert stats.histogram(metrics.TTFT).sum == 1.0 + 0.5 * rows.capacity
    assert stats.value(metrics.SLO_REQUESTS, result="bad") == 1
    assert stats.value(metrics.GENERATION_TOKENS) == 2 + 2 * rows.capacity


def test_an_end_counts_under_the_settings_that_were_in_force_when_it_came() -> None:
    trial = Trial(slo_e2e_ms=1000)
    trial.submit(range(10), max_tokens=2)
    trial.run()
    strict = EngineSettings(**{**trial.settings.model_dump(), "slo_e2e_ms": 1})
    trial.recorder.settings_applied(strict, generation=7, revision=1)
    trial.submit(range(10), max_tokens=2)
    trial.run()
    stats = trial.recorder.snapshot(trial.now)
    assert stats.value(metrics.SLO_REQUESTS, result="good") == 1
    assert stats.value(metrics.SLO_REQUESTS, result="bad") == 1
    assert trial.recorder.recording()["requests"]["generation"] == [0, 7]
    assert trial.finished[1].reason is FinishReason.LENGTH

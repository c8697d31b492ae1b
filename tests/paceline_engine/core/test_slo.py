import numpy as np
import pytest

from paceline_crds import metrics
from paceline_crds.settings import EngineSettings
from paceline_engine.core.request import FinishReason
from paceline_engine.testing.story import Story


def observations(story: Story, signal: str) -> list[int]:
    return [
        int(story.stats.value(metrics.SLO_OBSERVATIONS, signal=signal, within=within))
        for within in metrics.SLO_WITHIN
    ]


def judged(story: Story) -> tuple[int, int]:
    return (
        int(story.stats.value(metrics.SLO_REQUESTS, result="good")),
        int(story.stats.value(metrics.SLO_REQUESTS, result="bad")),
    )


def test_without_a_target_nothing_is_judged():
    story = Story()
    story.run(1, [1.0])
    assert judged(story) == (0, 0)
    assert observations(story, "ttft") == [0] * 6


@pytest.mark.parametrize(
    ("ttft", "observed", "verdict"),
    [
        (0.05, [1, 1, 1, 1, 1, 1], (1, 0)),
        (0.051, [0, 1, 1, 1, 1, 1], (1, 0)),
        (0.1, [0, 0, 1, 1, 1, 1], (1, 0)),
        (0.11, [0, 0, 0, 1, 1, 1], (0, 1)),
        (0.2, [0, 0, 0, 0, 1, 1], (0, 1)),
        (9.0, [0, 0, 0, 0, 0, 1], (0, 1)),
    ],
)
def test_an_observation_counts_in_its_multiple_and_all_larger_ones(ttft, observed, verdict):
    story = Story(slo_ttft_ms=100)
    story.run(1, [ttft])
    assert (observations(story, "ttft"), judged(story)) == (observed, verdict)


def gaps_to_times(gaps: list[float]) -> list[float]:
    return np.cumsum([0.0, *gaps]).tolist()


@pytest.mark.parametrize(
    ("num_gaps", "num_long", "is_good"),
    [(99, 0, True), (99, 1, False), (100, 1, True), (100, 2, False), (250, 2, True)],
)
def test_the_99th_percentile_of_a_requests_own_gaps_is_by_nearest_rank(num_gaps, num_long, is_good):
    gaps = [1.0] * num_long + [0.03125] * (num_gaps - num_long)
    story = Story(slo_itl_ms=50)
    story.run(1, gaps_to_times(gaps))
    assert judged(story) == ((1, 0) if is_good else (0, 1))
    assert np.percentile(gaps, 99, method="inverted_cdf") == (0.03125 if is_good else 1.0)


def test_a_request_of_one_token_has_no_gap_to_observe():
    story = Story(slo_itl_ms=50)
    story.run(1, [1.0])
    assert (observations(story, "itl"), judged(story)) == ([0] * 6, (1, 0))


def test_good_needs_every_target_that_is_set():
    story = Story(slo_ttft_ms=1000, slo_itl_ms=100, slo_e2e_ms=2000)
    story.run(1, [0.5, 0.5625])
    story.run(2, [0.5, 1.5])
    story.run(3, [0.5, *(0.5 + 0.0625 * i for i in range(1, 30))])
    assert judged(story) == (1, 2)
    assert observations(story, "itl")[2] == 2
    assert observations(story, "e2e")[2] == 2


def test_gaps_are_kept_per_request_through_slots_that_change_hands():
    story = Story(slo_itl_ms=100)
    story.arrive(1)
    story.arrive(2)
    story.admit(1, 0)
    story.tokens(1.0, s0=1)
    story.tokens(3.0, s0=1)  # request 1 has a long gap
    story.recorder.request_preempted(1, 5)
    story.admit(2, 0)
    story.tokens(3.0, s0=1)
    story.tokens(3.0625, s0=1)
    story.finish(2, 2, 3.0625)
    assert judged(story) == (1, 0)
    story.admit(1, 0)
    story.finish(1, 2, 4.0)
    assert judged(story) == (1, 1)


@pytest.mark.parametrize(
    ("reason", "verdict", "ttft_inf"),
    [
        (FinishReason.ABORT, (0, 0), 0),
        (FinishReason.ERROR, (0, 1), 0),
        (FinishReason.TIMEOUT, (0, 1), 1),
    ],
)
def test_what_ends_badly_is_judged_by_whose_fault_it_is(reason, verdict, ttft_inf):
    story = Story(slo_ttft_ms=100)
    story.arrive(1)
    story.finish(1, 0, 0.01, reason)
    assert judged(story) == verdict
    assert observations(story, "ttft") == [0, 0, 0, 0, 0, ttft_inf]


def test_a_new_target_counts_from_now_and_moves_the_revision():
    story = Story(slo_itl_ms=100)
    story.arrive(1)
    story.admit(1, 0)
    story.tokens(1.0, s0=1)
    story.tokens(2.0, s0=1)
    story.recorder.settings_applied(
        EngineSettings(slo_itl_ms=500, max_num_seqs=3), generation=4, revision=1
    )
    story.tokens(2.25, s0=1)
    story.finish(1, 3, 2.25)
    assert judged(story) == (1, 0)
    assert story.stats.value(metrics.SLO_REVISION) == 4
    assert story.stats.value(metrics.SLO_TARGET, signal="itl") == 0.5


def test_another_setting_leaves_the_slo_revision_alone():
    story = Story(slo_itl_ms=100)
    changed = EngineSettings(slo_itl_ms=100, max_num_seqs=3)
    story.recorder.settings_applied(changed, generation=4, revision=1)
    assert story.stats.value(metrics.SLO_REVISION) == 0


def test_rows_grow_and_keep_what_they_hold():
    story = Story(slo_itl_ms=100)
    story.arrive(0)
    story.admit(0, 0)
    story.tokens(1.0, s0=1)
    story.tokens(5.0, s0=1)
    for request in range(1, 100):
        story.arrive(request)
    story.finish(0, 2, 5.0)
    assert judged(story) == (0, 1)
    assert story.stats.value(metrics.WAITING) == 99

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from paceline_crds import metrics
from paceline_crds.settings import EngineSettings
from paceline_engine.core.request import FinishReason
from paceline_engine.testing.story import Story

GAP = st.sampled_from([0.03125, 0.0625, 0.25, 1.0])
EVENT = st.one_of(
    st.tuples(st.just("tokens"), st.lists(GAP, min_size=1, max_size=5)),
    st.tuples(st.just("preempt"), st.integers(0, 2)),
    st.tuples(st.just("finish"), st.integers(0, 2)),
    st.tuples(st.just("retarget"), st.sampled_from([50, 300])),
    st.tuples(st.just("look"), st.none()),
)


def tell(events: list, *, in_lockstep: bool) -> Story:
    """The same events to a recorder that sees the same arrays again, or new ones each time."""
    story = Story(slo_itl_ms=100)
    outputs = dict.fromkeys(range(3), 0)
    for request in outputs:
        story.arrive(request, has_stop_strings=request == 2, tenant=f"t{request % 2}")
        story.admit(request, request)
    now, slots = 0.0, np.array(sorted(outputs), dtype=np.int32)
    for kind, value in events:
        if kind == "tokens" and outputs:
            for gap in value:
                now += gap
                if in_lockstep:
                    story.recorder.tokens(slots, None, now)
                else:
                    story.recorder.tokens(slots.copy(), np.ones(len(slots), np.int32), now)
                outputs = {request: n + 1 for request, n in outputs.items()}
        elif kind == "preempt" and value in outputs:
            story.recorder.request_preempted(value, 3)
            story.admit(value, value, now=now)
        elif kind == "finish" and value in outputs:
            story.finish(value, outputs.pop(value), now, FinishReason.LENGTH)
            slots = np.array(sorted(outputs), dtype=np.int32)
        elif kind == "retarget":
            changed = EngineSettings(slo_itl_ms=value)
            story.recorder.settings_applied(changed, generation=1, revision=1)
        elif kind == "look":
            assert story.stats.value(metrics.RUNNING) == len(outputs)
    return story


@pytest.mark.slow
@hypothesis_settings(max_examples=60)
@given(events=st.lists(EVENT, max_size=12))
def test_a_batch_in_lockstep_is_counted_like_any_other(events):
    assert tell(events, in_lockstep=True).stats == tell(events, in_lockstep=False).stats


def test_a_look_at_the_stats_does_not_end_the_lockstep():
    story = Story()
    story.arrive(1)
    story.admit(1, 0)
    slots = np.array([0], dtype=np.int32)
    for now in (1.0, 2.0, 3.0, 4.0):
        story.recorder.tokens(slots, None, now)
        assert story.stats.value(metrics.GENERATION_TOKENS) == now
    assert story.total(metrics.ITL) == 3.0


def test_a_lockstep_longer_than_what_is_kept_aside_loses_nothing():
    story = Story(slo_itl_ms=1000)
    story.arrive(1)
    story.admit(1, 0)
    slots = np.array([0], dtype=np.int32)
    for step in range(3000):
        story.recorder.tokens(slots, None, step / 64)
    story.finish(1, 3000, 3000 / 64)
    assert story.count(metrics.ITL) == 2999
    assert story.stats.value(metrics.GENERATION_TOKENS) == 3000
    assert story.stats.value(metrics.SLO_REQUESTS, result="good") == 1


def test_a_step_of_first_tokens_and_of_gaps_of_one_length_counts_each():
    story = Story(slo_itl_ms=1000)
    for request in range(4):
        story.arrive(request)
        story.admit(request, request)
    story.tokens(1.0, s0=1, s1=1)
    story.tokens(3.0, s0=1, s1=1, s2=2, s3=1)
    assert story.count(metrics.TTFT) == 4
    assert story.count(metrics.ITL) == 2
    assert story.total(metrics.ITL) == 4.0
    assert story.stats.value(metrics.GENERATION_TOKENS) == 7
    story.tokens(4.0, s1=1, s2=1)
    story.tokens(6.0, s0=1, s1=1, s3=2)
    assert story.count(metrics.ITL) == 7
    assert story.total(metrics.ITL) == 4.0 + (1.0 + 1.0) + (3.0 + 2.0 + 3.0)

"""Sizes of plans against a row-by-row count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.core import step_features
from paceline_engine.core.plan import StepPlan
from paceline_engine.core.step_features import StepFeatures
from paceline_engine.testing.trial import Trial

Row = tuple[int, int, int, bool]


def plan_of(rows: list[Row]) -> StepPlan:
    starts, tokens, drafts, samples = zip(*rows, strict=True)
    n = len(rows)
    return StepPlan(
        step_id=0,
        slots=np.arange(n, dtype=np.int32),
        starts=np.array(starts, dtype=np.int32),
        num_tokens=np.array(tokens, dtype=np.int32),
        num_drafts=np.array(drafts, dtype=np.int32),
        draft_tokens=np.zeros(sum(drafts), dtype=np.int32),
        samples=np.array(samples, dtype=np.bool_),
        epochs=np.zeros(n, dtype=np.int32),
        request_ids=np.arange(n, dtype=np.int64),
    )


def counted(rows: list[Row]) -> StepFeatures:
    prefill = decode = kv = pairs = sampled = 0
    for start, tokens, drafts, samples in rows:
        if samples and tokens - drafts == 1:
            decode += tokens
        else:
            prefill += tokens
        kv += start + tokens
        pairs += sum(start + i + 1 for i in range(tokens))
        sampled += samples + drafts
    return StepFeatures(
        num_rows=len(rows),
        num_prefill_tokens=prefill,
        num_decode_tokens=decode,
        kv_tokens_read=kv,
        attention_pairs=pairs,
        num_sampled=sampled,
    )


@st.composite
def any_rows(draw: st.DrawFn) -> list[Row]:
    rows = []
    for _ in range(draw(st.integers(1, 8))):
        start = draw(st.integers(0, 300))
        known = draw(st.sampled_from([1, 1, 2, 70]))
        samples = draw(st.booleans())
        drafts = draw(st.integers(0, 4)) if samples and known == 1 else 0
        rows.append((start, known + drafts, drafts, samples))
    return rows


@given(any_rows())
def test_sizes_are_what_counting_row_by_row_gives(rows: list[Row]):
    assert step_features.of(plan_of(rows)) == counted(rows)


@given(any_rows())
def test_prefill_and_decode_add_up_to_all_tokens(rows: list[Row]):
    plan = plan_of(rows)
    assert step_features.of(plan).num_tokens == plan.total_tokens


def test_long_contexts_do_not_overflow():
    features = step_features.of(plan_of([(2_000_000, 100_000, 0, False)]))
    assert features.attention_pairs == 2_000_000 * 100_000 + 100_000 * 100_001 // 2


def test_a_prompt_then_decodes_read_their_whole_context_each_step():
    trial = Trial()
    trial.submit(range(20), max_tokens=4)
    trial.run()
    features = [step_features.of(plan) for plan in trial.plans]
    assert [f.kv_tokens_read for f in features] == [20, 21, 22, 23]
    assert [f.attention_pairs for f in features] == [210, 21, 22, 23]
    assert [(f.num_prefill_tokens, f.num_decode_tokens) for f in features] == [(20, 0)] + [
        (0, 1)
    ] * 3
    assert [f.num_sampled for f in features] == [1] * 4


def test_the_recorded_step_carries_the_sizes_of_its_plan():
    trial = Trial()
    for length in (5, 40, 90):
        trial.submit(range(length), max_tokens=6)
    trial.run()
    rows = trial.recorder.steps(100)
    assert len(rows) == len(trial.plans)
    for row, plan in zip(rows, trial.plans, strict=True):
        sizes = step_features.of(plan)
        assert row["kv_tokens_read"] == sizes.kv_tokens_read
        assert row["attention_pairs"] == sizes.attention_pairs
        assert row["num_sampled"] == sizes.num_sampled


def test_a_record_gives_back_the_sizes_that_were_planned():
    trial = Trial()
    trial.submit(range(33), max_tokens=3)
    trial.step()
    record = trial.recorder.last_step
    assert record is not None
    assert record.features == step_features.of(trial.plans[-1])
    with pytest.raises(AttributeError):
        record.features.num_rows = 3  # type: ignore[misc]

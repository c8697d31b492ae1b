import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.core import stop
from paceline_engine.core.request import FinishReason, SamplingParams

EOS = (2, 7)
MAX_MODEL_LEN = 24


def judge_one_by_one(
    params: SamplingParams, prompt: int, outputs: int, tokens: list[int]
) -> tuple[int, FinishReason | None]:
    limit = stop.output_limit(params, prompt, MAX_MODEL_LEN)
    for j, token in enumerate(tokens):
        if outputs + j >= limit:
            return j, FinishReason.LENGTH
        reason = stop.ending(params, EOS, limit, outputs + j, token)
        if reason is not None:
            return j + 1, reason
    return len(tokens), None


params = st.builds(
    SamplingParams,
    max_tokens=st.integers(0, 12),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    ignore_eos=st.booleans(),
)
row = st.tuples(
    params, st.integers(1, 20), st.integers(0, 6), st.lists(st.integers(0, 9), min_size=1)
)


@pytest.mark.slow
@given(rows=st.lists(row, min_size=1, max_size=6), width=st.integers(1, 4), data=st.data())
def test_a_step_judged_at_once_is_each_token_judged_alone(rows, width, data):
    rules = stop.StopRules(8, EOS)
    slots = data.draw(st.permutations(range(8)))[: len(rows)]
    tokens = np.full((len(rows), width), -1, dtype=np.int32)
    totals = np.zeros(len(rows), dtype=np.int64)
    expected = []
    for i, (p, prompt, outputs, ids) in enumerate(rows):
        rules.add(slots[i], p, prompt, MAX_MODEL_LEN)
        got = ids[:width]
        tokens[i, : len(got)] = got
        totals[i] = prompt + outputs
        expected.append(judge_one_by_one(p, prompt, outputs, got))
    verdict = rules.judge(np.array(slots, dtype=np.int32), totals, tokens)
    assert [(int(k), verdict.reason(i)) for i, k in enumerate(verdict.kept)] == expected


@pytest.mark.parametrize(
    ("params", "index", "token", "reason"),
    [
        (SamplingParams(max_tokens=5), 0, 2, FinishReason.STOP),
        (SamplingParams(max_tokens=5), 0, 3, None),
        (SamplingParams(max_tokens=5), 4, 3, FinishReason.LENGTH),
        (SamplingParams(max_tokens=5), 4, 2, FinishReason.STOP),
        (SamplingParams(max_tokens=5, ignore_eos=True), 0, 2, None),
        (SamplingParams(max_tokens=5, ignore_eos=True, stop_token_ids=(2,)), 0, 2, "stop"),
        (SamplingParams(max_tokens=5, min_tokens=2), 1, 2, None),
        (SamplingParams(max_tokens=5, min_tokens=2), 2, 2, FinishReason.STOP),
        (SamplingParams(max_tokens=5, min_tokens=2, stop_token_ids=(9,)), 1, 9, None),
    ],
)
def test_the_rules_of_one_token(params, index, token, reason):
    assert stop.ending(params, EOS, 5, index, token) == reason


def test_the_window_of_the_model_ends_a_request_before_max_tokens():
    assert stop.output_limit(SamplingParams(max_tokens=100), 20, MAX_MODEL_LEN) == 4


def test_tokens_after_a_stop_inside_an_accepted_run_do_not_count():
    rules = stop.StopRules(1, EOS)
    rules.add(0, SamplingParams(max_tokens=10), 3, MAX_MODEL_LEN)
    verdict = rules.judge(
        np.array([0], np.int32), np.array([3]), np.array([[4, 2, 5, 6]], np.int32)
    )
    assert (verdict.kept.tolist(), verdict.reason(0)) == ([2], FinishReason.STOP)


def test_a_slot_forgets_the_stop_ids_of_its_last_request():
    rules = stop.StopRules(1, EOS)
    rules.add(0, SamplingParams(max_tokens=10, stop_token_ids=(4, 5)), 3, MAX_MODEL_LEN)
    rules.add(0, SamplingParams(max_tokens=10, stop_token_ids=(6,)), 3, MAX_MODEL_LEN)
    verdict = rules.judge(np.array([0], np.int32), np.array([3]), np.array([[5]], np.int32))
    assert verdict.reason(0) is None


@pytest.mark.parametrize("width", [1, 2])
def test_a_quick_look_finds_end_tokens_whatever_the_steps_before(width: int) -> None:
    rules = stop.StopRules(8, EOS)
    for rows in (3, 5, 2, 2, 5):
        slots = np.arange(rows, dtype=np.int32)
        tokens = np.full((rows, width), 9, dtype=np.int32)
        assert not rules.may_stop(slots, tokens)
        for eos in EOS:
            tokens[-1, -1] = eos
            assert rules.may_stop(slots, tokens)
            tokens[-1, -1] = 9
            assert not rules.may_stop(slots, tokens)

"""Sampling by Triton gives the reference's tokens always; the interpreter stands for a device.

Its logarithms are numpy's, not torch's, so agreement is not for free here either.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_kernels import gumbel, ops, sampling
from paceline_kernels.errors import ShapeError
from paceline_kernels.fused import runtime
from paceline_kernels.fused import sampling as fused_sampling
from paceline_kernels.fused.gumbel import ERROR_UNIT, GROUP, groups_for, noisy_best_launch
from paceline_kernels.sampling import Rows

NEVER = float("-inf")


def rows_of(count, *, temperature=1.0, floor=NEVER):
    return Rows(
        places=np.arange(count)[::-1].copy(),
        temperature=np.full(count, temperature, np.float32),
        floor=np.full(count, floor, np.float32),
    )


def keys_of(count, seed=0):
    return np.random.default_rng(seed).integers(-(2**63), 2**63, count)


def scores_of(kind, rows, vocab, seed=0):
    scores = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))
    if kind == "coarse":
        return (scores * 2).round()  # many ties, and both zeros
    if kind == "flat":
        return torch.zeros(rows, vocab)
    if kind == "masked":
        return scores.masked_fill(scores < 1.0, NEVER).index_fill_(1, torch.tensor([3]), 1.0)
    if kind == "far":
        return scores * 1e4 - 3e5
    return scores * 3


KINDS = ("normal", "coarse", "flat", "masked", "far")
VOCABS = (5, 64, 1003, 2048, 4100)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    kind=st.sampled_from(KINDS),
    vocab=st.sampled_from(VOCABS),
    temperature=st.sampled_from([1.0, 0.07, 3.0]),
    floor=st.sampled_from([NEVER, 0.5]),
    seed=st.integers(0, 1000),
)
def test_drawn_tokens_are_those_of_the_reference(kind, vocab, temperature, floor, seed):
    scores, keys = scores_of(kind, 4, vocab, seed), keys_of(4, seed)
    rows = rows_of(4, temperature=temperature, floor=floor if kind == "normal" else NEVER)
    expected = ops.sample_gumbel(scores, rows, keys, impl="reference")
    assert ops.sample_gumbel(scores, rows, keys, impl="triton").tolist() == expected.tolist()


@pytest.mark.parametrize("vocab", [5, 64, 300])
def test_drawn_tokens_of_small_vocabularies_are_those_of_the_reference(vocab):
    scores, rows, keys = scores_of("normal", 9, vocab), rows_of(9, temperature=0.5), keys_of(9)
    expected = ops.sample_gumbel(scores, rows, keys, impl="reference")
    assert ops.sample_gumbel(scores, rows, keys, impl="triton").tolist() == expected.tolist()


def test_noise_is_within_its_proven_error_wherever_the_uniform_number_falls():
    vocab, count = 4096, 8
    scores, keys = torch.zeros(count, vocab), keys_of(count, 3)
    best = torch.empty(count, groups_for(vocab))
    ones, floors = torch.ones(count), torch.full((count,), NEVER)
    places = torch.arange(count)
    runtime.run(noisy_best_launch(scores, places, ones, floors, torch.from_numpy(keys), best))
    want = gumbel.noise_of_vocabulary(keys, vocab).view(count, -1, GROUP).amax(dim=2)
    assert ((best - want).abs() <= (want.abs() + 32) * ERROR_UNIT / 2).all()
    assert want.min() < 2.6 < 8 < want.max()  # both sides of u = 1 / 16: noise 2.7


def test_nearly_always_one_group_is_named_and_the_winner_is_in_it():
    scores, rows, keys = scores_of("normal", 40, 1003), rows_of(40), keys_of(40)
    row, ids, own = fused_sampling.candidates(scores, rows, keys)
    expected = ops.sample_gumbel(scores, rows, keys, impl="reference")
    assert np.unique(row).tolist() == list(range(40))
    assert len(row) <= 42
    held = [int(token) in ids[row == at] for at, token in enumerate(expected)]
    assert all(held)
    assert own.shape == ids.shape == (len(row), GROUP)


def test_of_equal_noisy_scores_in_two_groups_the_first_wins():
    # Noise is lost beside scores of 1e9: all noisy scores are equal.
    scores = torch.full((2, 300), 1e9)
    keys = keys_of(2)
    assert ops.sample_gumbel(scores, rows_of(2), keys, impl="triton").tolist() == [0, 0]
    scores[:, :200] = 0.0
    assert ops.sample_gumbel(scores, rows_of(2), keys, impl="triton").tolist() == [200, 200]


@pytest.mark.slow
@settings(max_examples=25)
@given(
    kind=st.sampled_from(KINDS),
    sizes=st.sampled_from([(5, 5), (64, 3), (3000, 40), (2500, 512), (300, 1)]),
    seed=st.integers(0, 1000),
)
def test_the_best_are_those_of_the_reference(kind, sizes, seed):
    vocab, count = sizes
    scores = scores_of(kind, 3, vocab, seed)
    rows = rows_of(3, temperature=0.7, floor=0.1 if kind == "normal" else NEVER)
    expected = ops.sample_top(scores, rows, count, with_norm=True, impl="reference")
    got = ops.sample_top(scores, rows, count, with_norm=True, impl="triton")
    assert got.is_all.tolist() == expected.is_all.tolist()
    assert got.values.tolist() == expected.values.tolist()
    assert got.ids.tolist() == expected.ids.tolist()
    assert got.norm is not None
    assert expected.norm is not None
    assert (np.abs(got.norm - expected.norm) <= got.norm_error).all()


@pytest.mark.parametrize("count", [1, 3, 64])
def test_the_best_of_a_small_vocabulary_are_those_of_the_reference(count):
    scores, rows = scores_of("coarse", 2, 64), rows_of(2, temperature=0.7)
    expected = ops.sample_top(scores, rows, count, with_norm=False, impl="reference")
    got = ops.sample_top(scores, rows, count, with_norm=False, impl="triton")
    assert got.is_all.tolist() == expected.is_all.tolist()
    assert got.values.tolist() == expected.values.tolist()
    assert got.ids.tolist() == expected.ids.tolist()


def test_the_best_come_without_a_norm_where_none_is_asked_for():
    got = ops.sample_top(scores_of("normal", 2, 64), rows_of(2), 3, with_norm=False, impl="triton")
    assert got.norm is None


def test_ties_too_many_to_list_are_listed_by_the_reference():
    scores, rows = scores_of("flat", 2, 300), rows_of(2)
    assert fused_sampling.top(scores, rows, 7, with_norm=False) is None
    got = ops.sample_top(scores, rows, 7, with_norm=False, impl="triton")
    assert got.ids.tolist() == [list(range(300))] * 2


def test_only_the_named_rows_are_sampled():
    scores = scores_of("normal", 9, 300)
    rows = Rows(
        places=np.array([7, 2]),
        temperature=np.array([0.5, 2.0], np.float32),
        floor=np.full(2, NEVER, np.float32),
    )
    keys = keys_of(2)
    both = ops.sample_gumbel(scores, rows, keys, impl="triton").tolist()
    assert both == ops.sample_gumbel(scores, rows, keys, impl="reference").tolist()
    assert ops.sample_gumbel(scores, rows.some(np.arange(0)), keys[:0], impl="triton").size == 0
    none = ops.sample_top(scores, rows.some(np.arange(0)), 3, with_norm=True, impl="triton")
    assert len(none.values) == 0


def test_wrong_arguments_are_refused():
    scores, rows = scores_of("normal", 2, 8), rows_of(2)
    with pytest.raises(ShapeError, match="keys"):
        ops.sample_gumbel(scores, rows, keys_of(3), impl="triton")
    with pytest.raises(ShapeError, match="scores"):
        ops.sample_gumbel(scores.t(), rows, keys_of(2), impl="triton")
    with pytest.raises(ShapeError, match="count"):
        sampling.sample_top(scores, rows, 9, with_norm=False, impl="triton")

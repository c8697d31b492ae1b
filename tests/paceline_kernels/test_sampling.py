"""The C++ sampling gives the reference's tokens always, not nearly always."""

import numpy as np
import pytest
import torch

from paceline_kernels import ops, sampling
from paceline_kernels.errors import ImplUnavailableError, ShapeError
from paceline_kernels.sampling import Rows

NEVER = float("-inf")


def rows_of(count: int, *, temperature: float = 1.0, floor: float = NEVER) -> Rows:
    return Rows(
        places=np.arange(count)[::-1].copy(),
        temperature=np.full(count, temperature, np.float32),
        floor=np.full(count, floor, np.float32),
    )


def keys_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**63), 2**63, count)


def scores_of(kind: str, rows: int, vocab: int) -> torch.Tensor:
    scores = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab))
    if kind == "coarse":
        return (scores * 2).round()
    if kind == "flat":
        return torch.zeros(rows, vocab)
    if kind == "masked":
        return scores.masked_fill(scores < 2.0, NEVER).index_fill_(1, torch.tensor([3]), 1.0)
    if kind == "far":
        return scores * 1e4 - 3e5
    return scores * 3


KINDS = ("normal", "coarse", "flat", "masked", "far")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [5, 64, 1003])
def test_drawn_tokens_are_those_of_the_reference(kind: str, vocab: int) -> None:
    scores = scores_of(kind, 200, vocab)
    for seed, (temperature, floor) in enumerate([(1.0, NEVER), (0.07, NEVER), (3.0, 0.5)]):
        rows, keys = rows_of(200, temperature=temperature, floor=floor), keys_of(200, seed)
        if kind == "far":
            rows.floor.fill(NEVER)
        expected = ops.sample_gumbel(scores, rows, keys, impl="reference")
        assert ops.sample_gumbel(scores, rows, keys, impl="cpu").tolist() == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "coarse", "far"])
def test_drawn_tokens_of_a_large_vocabulary_are_those_of_the_reference(kind: str) -> None:
    scores, rows, keys = scores_of(kind, 64, 49_152), rows_of(64, temperature=0.8), keys_of(64)
    expected = ops.sample_gumbel(scores, rows, keys, impl="reference")
    assert ops.sample_gumbel(scores, rows, keys, impl="cpu").tolist() == expected.tolist()


def test_candidates_hold_the_winner_and_are_nearly_always_one() -> None:
    from paceline_kernels.cpu import sampling as cpu_sampling

    scores, rows, keys = scores_of("normal", 300, 1003), rows_of(300), keys_of(300)
    ids, counts = cpu_sampling.draw(scores, rows, keys)
    assert (counts >= 1).all()
    assert (counts == 1).mean() > 0.99
    expected = ops.sample_gumbel(scores, rows, keys, impl="reference")
    listed = np.arange(ids.shape[1]) < counts[:, None]
    assert ((ids == expected[:, None]) & listed).any(axis=1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("vocab", "count"), [(5, 5), (64, 3), (5000, 40), (5000, 512)])
def test_the_best_are_those_of_the_reference(kind: str, vocab: int, count: int) -> None:
    scores = scores_of(kind, 6, vocab)
    rows = rows_of(6, temperature=0.7, floor=NEVER if kind == "far" else 0.1)
    if kind == "flat":
        rows.floor.fill(NEVER)
    expected = ops.sample_top(scores, rows, count, with_norm=True, impl="reference")
    got = ops.sample_top(scores, rows, count, with_norm=True, impl="cpu")
    assert got.is_all.tolist() == expected.is_all.tolist()
    assert got.values.tolist() == expected.values.tolist()
    assert got.ids.tolist() == expected.ids.tolist()
    assert got.norm is not None
    assert expected.norm is not None
    assert (np.abs(got.norm - expected.norm) <= got.norm_error + expected.norm_error).all()
    exact = sampling.exact_norm(scores, rows)
    assert exact.tolist() == expected.norm.tolist()


def test_only_the_named_rows_are_sampled() -> None:
    scores = scores_of("normal", 9, 300)
    rows = Rows(
        places=np.array([7, 2]),
        temperature=np.array([0.5, 2.0], np.float32),
        floor=np.full(2, NEVER, np.float32),
    )
    keys = keys_of(2)
    alone = [
        ops.sample_gumbel(scores, rows.some(np.array([i])), keys[[i]], impl="cpu")[0]
        for i in range(2)
    ]
    assert ops.sample_gumbel(scores, rows, keys, impl="cpu").tolist() == alone
    assert ops.sample_gumbel(scores, rows.some(np.arange(0)), keys[:0], impl="cpu").size == 0


def test_wrong_arguments_are_refused() -> None:
    scores, rows = scores_of("normal", 2, 8), rows_of(2)
    with pytest.raises(ImplUnavailableError, match="reference, torch, cpu"):
        ops.sample_gumbel(scores, rows, keys_of(2), impl="fast")
    with pytest.raises(ShapeError, match="keys"):
        ops.sample_gumbel(scores, rows, keys_of(3))
    with pytest.raises(ShapeError, match="places"):
        ops.sample_gumbel(scores[:1], rows, keys_of(2))
    with pytest.raises(ShapeError, match="count"):
        ops.sample_top(scores, rows, 9, with_norm=False)

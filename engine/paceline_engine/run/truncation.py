"""top-k, top-p and min-p: which tokens may be drawn.

Sorting a whole vocabulary costs milliseconds a row. The tokens kept are nearly always among a few
hundred best: those are cut out and sorted, in growing lists, and a row is done at the first list
that provably holds all it keeps.
"""

import numpy as np
from torch import Tensor

from paceline_engine.core.arrays import Bool, Float32, Float64, Int64
from paceline_kernels import ops, sampling
from paceline_kernels.sampling import Rows, TopScores

_CANDIDATES = (512, 2048, 8192)


def min_p_floor(best: Float32, min_p: Float32) -> Float32:
    """Score below which a token is less likely than min_p times the most likely one.

    Args:
        best: [n] largest score after the temperature.
        min_p: [n], 0 drops nothing (the floor is -inf).

    Source: arXiv:2407.01082.
    """
    with np.errstate(divide="ignore"):
        floor: Float32 = best + np.log(min_p)
    return floor


def keep_top(
    scores: Tensor, rows: Rows, top_k: Int64, top_p: Float32, *, impl: str
) -> tuple[Float32, Int64]:
    """Keep the k best, then the smallest set of the best that holds top_p of what is left.

    Args:
        scores: [*, vocab] float32; not changed.
        rows: which, with temperature and floor.
        top_k: [n], the size of the vocabulary keeps all. Ties with the k-th best are kept.
        top_p: [n], 1 keeps all.
        impl: implementation of the kernels.

    Returns:
        (scores after the temperature, token ids), [n, m] each: -inf where a token is not kept.

    Source: nucleus sampling, arXiv:1904.09751.
    """
    vocab = scores.shape[1]
    pending = np.arange(len(top_k))
    parts: list[tuple[Int64, Float32, Int64]] = []
    for size in (*_CANDIDATES, vocab):
        count = min(size, vocab)
        k, p, some = top_k[pending], top_p[pending], rows.some(pending)
        # Ties with the last candidate are candidates too: the k best are at hand with theirs.
        has_k = k <= count
        top = ops.sample_top(scores, some, count, with_norm=not has_k.all(), impl=impl)
        is_whole = top.is_all | has_k
        kept, is_done = _cut(top, k, p, is_whole, scores, some)
        # What is kept stands first: the rest of the list need not be drawn from.
        width = int(np.isfinite(kept[is_done]).sum(axis=1).max(initial=0))
        parts.append((pending[is_done], kept[is_done, :width], top.ids[is_done, :width]))
        pending = pending[~is_done]
        if not pending.size:
            break
    return _joined(parts, len(top_k))


def _cut(
    top: TopScores, k: Int64, p: Float32, is_whole: Bool, scores: Tensor, rows: Rows
) -> tuple[Float32, Bool]:
    """Mask candidates (best first), and say which rows' candidates hold all that is kept.

    Sums run in float64 from the best down, so that no row's cut depends on how long the lists of
    the rows beside it are.
    """
    columns = np.minimum(k - 1, top.values.shape[1] - 1)
    threshold = np.take_along_axis(top.values, columns[:, None], axis=1)
    kept = np.where(top.values < threshold, np.float32(-np.inf), top.values)
    weights = np.exp(kept - kept[:, :1], dtype=np.float64)
    total = weights.cumsum(axis=1)
    # The k best, when all at hand, are the whole mass; without top-k it is the vocabulary's.
    mass = total[:, -1].copy()
    if top.norm is not None:
        norm = top.norm.copy()
        unsure = np.flatnonzero(
            ~is_whole & _is_close(total, weights, mass=_mass(norm, kept), p=p, error=top.norm_error)
        )
        if unsure.size:
            norm[unsure] = sampling.exact_norm(scores, rows.some(unsure))
        mass = np.where(is_whole, mass, _mass(norm, kept))
    limit = np.where(p < 1.0, p, np.inf) * mass
    is_cut = total - weights >= limit[:, None]
    is_cut[:, 0] = False  # the best token stays, however small p is
    kept[is_cut] = -np.inf
    is_done: Bool = is_whole | ((k >= scores.shape[1]) & (total[:, -1] >= p * mass))
    return kept, is_done


def _mass(norm: Float32, kept: Float32) -> Float64:
    """Weight of the whole vocabulary beside the best token's, which is 1."""
    mass: Float64 = np.exp(norm.astype(np.float64) - kept[:, 0])
    return mass


def _is_close(
    total: Float64, weights: Float64, *, mass: Float64, p: Float32, error: Float32
) -> Bool:
    """Rows in which a mass wrong by its error could move the cut or hide that p is reached."""
    limit = (p * mass)[:, None]
    room = limit * (2.0 * error[:, None])
    is_cut_close = (np.abs(total - weights - limit) < room).any(axis=1)
    is_close: Bool = is_cut_close | (np.abs(total[:, -1] - limit[:, 0]) < room[:, 0])
    return is_close


def _joined(parts: list[tuple[Int64, Float32, Int64]], num_rows: int) -> tuple[Float32, Int64]:
    width = max(kept.shape[1] for _, kept, _ in parts)
    scores = np.full((num_rows, width), -np.inf, dtype=np.float32)
    token_ids = np.zeros((num_rows, width), dtype=np.int64)
    for rows, kept, ids in parts:
        scores[rows, : kept.shape[1]] = kept
        token_ids[rows, : ids.shape[1]] = ids
    return scores, token_ids

"""top-k, top-p and min-p: which tokens may be drawn.

Sorting a whole vocabulary costs milliseconds a row. The tokens kept are nearly always among a few
hundred best: they are taken from growing candidate lists, and a row is done at the first list
that provably holds all it keeps.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_CANDIDATES = (128, 2048)
_NEVER = float("-inf")


def mask_min_p_(scaled: Tensor, min_p: NDArray[np.float32]) -> None:
    """Drop, in place, tokens less likely than min_p times the most likely one.

    Args:
        scaled: [n, vocab] float32, after the temperature.
        min_p: [n], 0 drops nothing.

    Source: arXiv:2407.01082.
    """
    floor = scaled.amax(dim=-1, keepdim=True) + torch.from_numpy(min_p).log().unsqueeze(1)
    scaled.masked_fill_(scaled < floor, _NEVER)


def keep_top(
    scaled: Tensor, top_k: NDArray[np.int64], top_p: NDArray[np.float32]
) -> tuple[Tensor, Tensor]:
    """Keep the k best, then the smallest set of the best that holds top_p of what is left.

    Args:
        scaled: [n, vocab] float32, after the temperature (and min-p).
        top_k: [n], the size of the vocabulary keeps all. Ties with the k-th best are kept.
        top_p: [n], 1 keeps all.

    Returns:
        (scores, token ids), [n, m] each: scores are -inf where a token is not kept.

    Source: nucleus sampling, arXiv:1904.09751.
    """
    vocab = scaled.shape[1]
    k = torch.from_numpy(top_k).unsqueeze(1)
    p = torch.from_numpy(top_p).unsqueeze(1)
    norm = scaled.logsumexp(dim=-1, keepdim=True)
    pending = torch.arange(scaled.shape[0])
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for size in (*_CANDIDATES, vocab):
        count = min(size, vocab)
        values, ids = scaled[pending].topk(count, dim=-1)
        kept, is_done = _cut(values, k[pending], p[pending], norm[pending], vocab)
        parts.append((pending[is_done], kept[is_done], ids[is_done]))
        pending = pending[~is_done]
        if not pending.numel():
            break
    return _joined(parts, scaled.shape[0])


def _cut(values: Tensor, k: Tensor, p: Tensor, norm: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """Mask candidates (best first), and say for which rows no token outside could be kept."""
    count = values.shape[1]
    threshold = values.gather(1, (k - 1).clamp(max=count - 1))
    worst = values[:, -1:]
    # A tie with the k-th best may go on behind the candidates.
    has_all_k = (k < count) & ((worst < threshold) | (worst == _NEVER))
    if count == vocab:
        has_all_k = torch.ones_like(has_all_k)
    kept = values.masked_fill(values < threshold, _NEVER)
    # The k best, when all at hand, are the whole mass; without top-k it is the vocabulary's.
    mass = torch.where(has_all_k, kept.logsumexp(dim=-1, keepdim=True), norm)
    probabilities = (kept - mass).exp()
    total = probabilities.cumsum(dim=-1)
    kept.masked_fill_((total - probabilities >= p) & (p < 1.0), _NEVER)
    is_done = has_all_k | ((k == vocab) & (total[:, -1:] >= p))
    return kept, is_done.squeeze(1)


def _joined(parts: list[tuple[Tensor, Tensor, Tensor]], num_rows: int) -> tuple[Tensor, Tensor]:
    width = max(kept.shape[1] for _, kept, _ in parts)
    scores = torch.full((num_rows, width), _NEVER)
    token_ids = torch.zeros((num_rows, width), dtype=torch.int64)
    for rows, kept, ids in parts:
        scores[rows, : kept.shape[1]] = kept
        token_ids[rows, : ids.shape[1]] = ids
    return scores, token_ids

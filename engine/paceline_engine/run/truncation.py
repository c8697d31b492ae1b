"""top-k, top-p and min-p: which tokens may be drawn.

Sorting a whole vocabulary costs milliseconds a row. The tokens kept are nearly always among a few
hundred best: those are cut out (a partition, no sort) and sorted, in growing lists, and a row is
done at the first list that provably holds all it keeps.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_CANDIDATES = (512, 8192)
_NEVER = float("-inf")
_LOWEST = np.finfo(np.float32).min


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
        values, ids, is_all = _best(scaled[pending], count)
        # Ties with the last candidate are candidates too: the k best are at hand with theirs.
        is_whole = is_all | (k[pending] <= count)
        kept, has_p = _cut(values, k[pending], p[pending], norm[pending], is_whole)
        is_done = (is_whole | ((k[pending] == vocab) & has_p)).squeeze(1)
        parts.append((pending[is_done], kept[is_done], ids[is_done]))
        pending = pending[~is_done]
        if not pending.numel():
            break
    return _joined(parts, scaled.shape[0])


def _best(scaled: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Cut out the `count` best of each row, best first, with all ties of the last.

    Returns:
        Scores and ids, [n, m] each, padded with -inf; and [n, 1] bool, nothing possible is missing.
    """
    table = scaled.numpy()
    rows_total, vocab = table.shape
    last = np.partition(table, vocab - count, axis=1)[:, vocab - count : vocab - count + 1]
    flat = np.flatnonzero(table >= np.maximum(last, _LOWEST))
    rows, ids = np.divmod(flat, vocab)
    widths = np.bincount(rows, minlength=rows_total)
    columns = np.arange(len(flat)) - np.repeat(np.cumsum(widths) - widths, widths)
    values = np.full((rows_total, int(widths.max())), _NEVER, dtype=np.float32)
    values[rows, columns] = table[rows, ids]
    token_ids = np.zeros(values.shape, dtype=np.int64)
    token_ids[rows, columns] = ids
    order = np.argsort(-values, axis=1, kind="stable")
    is_all = np.isneginf(last) | (count == vocab)
    return (
        torch.from_numpy(np.take_along_axis(values, order, axis=1)),
        torch.from_numpy(np.take_along_axis(token_ids, order, axis=1)),
        torch.from_numpy(is_all),
    )


def _cut(
    values: Tensor, k: Tensor, p: Tensor, norm: Tensor, is_whole: Tensor
) -> tuple[Tensor, Tensor]:
    """Mask candidates (best first), and say in which rows they hold the mass p."""
    threshold = values.gather(1, (k - 1).clamp(max=values.shape[1] - 1))
    kept = values.masked_fill(values < threshold, _NEVER)
    # The k best, when all at hand, are the whole mass; without top-k it is the vocabulary's.
    mass = torch.where(is_whole, kept.logsumexp(dim=-1, keepdim=True), norm)
    probabilities = (kept - mass).exp()
    total = probabilities.cumsum(dim=-1)
    kept.masked_fill_((total - probabilities >= p) & (p < 1.0), _NEVER)
    return kept, total[:, -1:] >= p


def _joined(parts: list[tuple[Tensor, Tensor, Tensor]], num_rows: int) -> tuple[Tensor, Tensor]:
    width = max(kept.shape[1] for _, kept, _ in parts)
    scores = torch.full((num_rows, width), _NEVER)
    token_ids = torch.zeros((num_rows, width), dtype=torch.int64)
    for rows, kept, ids in parts:
        scores[rows, : kept.shape[1]] = kept
        token_ids[rows, : ids.shape[1]] = ids
    return scores, token_ids

"""Sampling over a vocabulary: which token has the largest noisy score, and which are the best.

The reference defines the token, and impls "cpu" and "triton" give the same one always, although
they round logarithms in another way: they name the few candidates that their own error leaves, and
the reference's arithmetic decides between them. Rows are told by number, so that nobody copies
logits. Parameters of rows are numpy arrays, as the caller keeps them; with "triton" the scores lie
on the device, and only candidates leave it.
"""

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline_kernels import checks, gumbel
from paceline_kernels.cpu import sampling as cpu_sampling
from paceline_kernels.errors import ImplUnavailableError, ShapeError
from paceline_kernels.implementations import IMPLS, module_of

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]

_LOWEST = np.finfo(np.float32).min
SLICE_BYTES = 3 << 19
"""Of scores that are copied at a time: more leaves the processor's cache, at twice a row's time."""

NORM_ERROR = {"cpu": 2.0**-18, "triton": 2.0**-17}
"""Of logsumexp, before its rounding: C++ has 2^-22 each of exp and sums.

A device's exp2 is off by 2^-22; score - best and its product with log2(e) by 2^-24 of the distance
each, which is 12.5 at most in the mean by weight (no more than log(vocab)); sums of a tile of 2,048
by 2^-19 in the worst order: less than 2^-18 in all, and as much room.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Which rows of scores are sampled, and how.

    Attributes:
        places: [n] int64, rows of the scores.
        temperature: [n] float32, > 0; a row's scores are divided by it.
        floor: [n] float32, divided scores below it count as -inf (-inf: none).
    """

    places: Int64
    temperature: Float32
    floor: Float32

    def some(self, chosen: Int64) -> "Rows":
        """The rows at `chosen`, places in this list."""
        return Rows(
            places=self.places[chosen],
            temperature=self.temperature[chosen],
            floor=self.floor[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopScores:
    """The best divided scores of each row, best first, equal ones by id.

    Attributes:
        values, ids: [n, m], padded with -inf and 0.
        is_all: [n] bool, no other token has a score above -inf.
        norm: [n] logsumexp of a row's divided scores, or None.
        norm_error: [n] how far `norm` may be from the reference's.
    """

    values: Float32
    ids: Int64
    is_all: NDArray[np.bool_]
    norm: Float32 | None
    norm_error: Float32


def sample_gumbel(scores: Tensor, rows: Rows, keys: Int64, *, impl: str = "torch") -> Int64:
    """Draw each row's token: the largest divided score plus Gumbel noise, the first of equals.

    Args:
        scores: [*, vocab] float32, finite or -inf; not changed.
        rows: which, and how.
        keys: [n] int64, key of each row's noise.
        impl: name of the implementation.

    Returns:
        [n] token ids.

    Raises:
        ShapeError, DTypeError, ImplUnavailableError: as every operation.
    """
    _check(scores, rows, impl)
    if len(keys) != len(rows.places):
        raise ShapeError(f"keys must be [n] = [{len(rows.places)}], got {list(keys.shape)}")
    if impl == "cpu":
        return _drawn_by_cpu(scores, rows, keys)
    if impl == "triton":
        return _decided(rows, keys, *_fused().candidates(scores, rows, keys))
    tokens = np.zeros(len(keys), dtype=np.int64)
    step = max(1, SLICE_BYTES // (4 * scores.shape[1]))
    for start in range(0, len(keys), step):
        part = np.arange(start, min(start + step, len(keys)))
        noisy = divided(scores, rows.some(part))
        noisy += gumbel.noise_of_vocabulary(keys[part], scores.shape[1])
        tokens[part] = noisy.numpy().argmax(axis=1)
    return tokens


def _drawn_by_cpu(scores: Tensor, rows: Rows, keys: Int64) -> Int64:
    ids, counts = cpu_sampling.draw(scores, rows, keys)
    tokens = ids[:, 0].astype(np.int64)
    for row in np.flatnonzero(counts != 1).tolist():
        one = np.array([row])
        if counts[row] < 1:
            tokens[row] = sample_gumbel(scores, rows.some(one), keys[one], impl="reference")[0]
            continue
        few = ids[row, : counts[row]].astype(np.int64)
        noise = gumbel.noise_of_tokens(keys[one], torch.from_numpy(few).unsqueeze(0))[0].numpy()
        own = scores.numpy()[rows.places[row], few] / rows.temperature[row]
        tokens[row] = few[int((own + noise).argmax())]
    return tokens


def _decided(rows: Rows, keys: Int64, row: Int64, ids: Int64, own: Float32) -> Int64:
    """The winner of each row among its candidates, by the reference's arithmetic.

    Args:
        rows: [n].
        keys: [n].
        row: [m] whose candidates, ascending; each row at least once.
        ids: [m, *] candidates, ascending within a row.
        own: [m, *] their undivided scores.
    """
    scaled = own / rows.temperature[row][:, None]
    scaled[scaled < rows.floor[row][:, None]] = -np.inf
    noisy = scaled + gumbel.noise_of_tokens(keys[row], torch.from_numpy(ids)).numpy()
    at = np.arange(len(row)), noisy.argmax(axis=1)
    value, token = noisy[at], ids[at]
    best = np.full(len(keys), -np.inf, dtype=np.float32)
    np.maximum.at(best, row, value)
    wins = np.flatnonzero(value == best[row])
    _, first = np.unique(row[wins], return_index=True)
    tokens: Int64 = token[wins[first]]
    return tokens


def sample_top(
    scores: Tensor, rows: Rows, count: int, *, with_norm: bool, impl: str = "torch"
) -> TopScores:
    """Find the `count` best divided scores of each row, with all ties of the last.

    Args:
        scores: [*, vocab] float32, finite or -inf; not changed.
        rows: which, and how.
        count: 1 to vocab.
        with_norm: also give `norm`.
        impl: name of the implementation.

    Raises:
        ShapeError, DTypeError, ImplUnavailableError: as every operation.
    """
    _check(scores, rows, impl)
    vocab = scores.shape[1]
    if not 1 <= count <= vocab:
        raise ShapeError(f"count must be from 1 to vocab {vocab}, got {count}")
    if impl in {"cpu", "triton"}:
        module = cpu_sampling if impl == "cpu" else _fused()
        found = module.top(scores, rows, count, with_norm=with_norm)
        if found is not None:
            values, ids, last, norms = found
            # exp and the sums of their side, and both sides' rounding to float32.
            error = None if norms is None else NORM_ERROR[impl] + np.abs(norms) * 2.0**-22
            return TopScores(
                values=values,
                ids=ids,
                is_all=np.isneginf(last) | (count == vocab),
                norm=norms,
                norm_error=np.zeros_like(last) if error is None else error.astype(np.float32),
            )
    scaled = divided(scores, rows)
    values, ids, last = _best(scaled.numpy(), count)
    return TopScores(
        values=values,
        ids=ids,
        is_all=np.isneginf(last) | (count == vocab),
        norm=scaled.logsumexp(dim=-1).numpy() if with_norm else None,
        norm_error=np.zeros_like(last),
    )


def exact_norm(scores: Tensor, rows: Rows) -> Float32:
    """The reference's logsumexp of the rows' divided scores."""
    norm: Float32 = divided(scores, rows).logsumexp(dim=-1).numpy()
    return norm


def divided(scores: Tensor, rows: Rows) -> Tensor:
    """A copy of the rows on the host, divided by their temperatures; below the floor is -inf."""
    scaled = scores[torch.from_numpy(rows.places).to(scores.device)].cpu()
    scaled.div_(torch.from_numpy(rows.temperature).unsqueeze(1))
    if not np.isneginf(rows.floor).all():
        floor = torch.from_numpy(rows.floor).unsqueeze(1)
        scaled.masked_fill_(scaled < floor, float("-inf"))
    return scaled


def _best(table: Float32, count: int) -> tuple[Float32, Int64, Float32]:
    """Values and ids [n, m] best first, and the count-th best value of each row."""
    rows_total, vocab = table.shape
    last = np.partition(table, vocab - count, axis=1)[:, vocab - count]
    flat = np.flatnonzero(table >= np.maximum(last, _LOWEST)[:, None])
    rows, ids = np.divmod(flat, vocab)
    widths = np.bincount(rows, minlength=rows_total)
    columns = np.arange(len(flat)) - np.repeat(np.cumsum(widths) - widths, widths)
    values = np.full((rows_total, int(widths.max())), -np.inf, dtype=np.float32)
    values[rows, columns] = table[rows, ids]
    token_ids = np.zeros(values.shape, dtype=np.int64)
    token_ids[rows, columns] = ids
    order = np.argsort(-values, axis=1, kind="stable")
    sorted_values: Float32 = np.take_along_axis(values, order, axis=1)
    sorted_ids: Int64 = np.take_along_axis(token_ids, order, axis=1)
    return sorted_values, sorted_ids, last


def _fused() -> ModuleType:
    """Triton's kernels, imported when they are first named.

    Raises:
        ImplUnavailableError: Triton cannot run here.
    """
    module_of("triton")
    from paceline_kernels.fused import sampling

    return sampling


def _check(scores: Tensor, rows: Rows, impl: str) -> None:
    if impl not in IMPLS:
        raise ImplUnavailableError(f"impl must be one of {', '.join(IMPLS)}, got {impl!r}")
    checks.expect_shape("scores", scores, (None, None), "rows, vocab")
    checks.expect_dtype("scores", scores, (torch.float32,))
    checks.expect_rows_contiguous("scores", scores)
    sizes = {array.shape for array in (rows.places, rows.temperature, rows.floor)}
    if len(sizes) != 1 or rows.places.ndim != 1:
        raise ShapeError(f"places, temperature and floor must be [n] each, got {sizes}")
    if len(rows.places) and not 0 <= rows.places.min() <= rows.places.max() < scores.shape[0]:
        raise ShapeError(f"places must be rows of scores {list(scores.shape)}, got {rows.places}")

"""The best scores of a row: the count-th best is found by its bits, then all from it up are listed.

Floats become integers in the same order, and four passes over the row settle eight bits each of the
count-th best by a histogram (radix selection). Nothing is rounded, so the list is the reference's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.fused.runtime import Launch

TILE = 2048
_LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _scaled(scores, columns, vocab, temperature, floor):
    score = tl.load(scores + columns, mask=columns < vocab, other=float("-inf"))
    scaled = tl.div_rn(score, temperature)
    return tl.where(scaled < floor, float("-inf"), scaled)


@triton.jit
def _ordered(value):
    """Unsigned integers in the order of the floats; both zeros are one."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 0, bits | 0x80000000, ~bits)


@triton.jit
def _next_digit(
    own, vocab, temperature, floor, settled, wanted, SHIFT: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Settle eight more bits; wanted: its place among what has the bits that are settled."""
    lanes, digits = tl.arange(0, TILE), tl.arange(0, 256)
    histogram = tl.zeros((256,), tl.int32)
    for start in range(0, vocab, TILE):
        order = _ordered(_scaled(own, start + lanes, vocab, temperature, floor)) >> SHIFT
        # Two shifts: by 32 there is none.
        is_open = (start + lanes < vocab) & (order >> 8 == (settled >> SHIFT) >> 8)
        histogram += tl.histogram((order & 0xFF).to(tl.int32), 256, mask=is_open)
    from_here = tl.cumsum(histogram, axis=0, reverse=True)
    chosen = tl.max(tl.where(from_here >= wanted, digits, 0), axis=0)
    wanted -= tl.sum(tl.where(digits == chosen, from_here - histogram, 0), axis=0)
    return settled | (chosen.to(tl.uint32) << SHIFT), wanted


@triton.jit
def top_scores_kernel(
    scores, places, temperatures, floors, values, ids, lengths, last, peaks, masses,
    vocab, scores_stride, count, capacity,
    TILE: tl.constexpr, WITH_MASS: tl.constexpr,
):  # fmt: skip
    """Grid: rows. values, ids: [rows, capacity], filled in the order of the ids.

    lengths: how many there are, more than capacity if they do not fit; last: the count-th best;
    peaks, masses: the best, and the sum of exp(score - best), which is as wrong as a device's exp.
    """
    row = tl.program_id(0)
    own = scores + tl.load(places + row) * scores_stride
    temperature, floor = tl.load(temperatures + row), tl.load(floors + row)
    lanes = tl.arange(0, TILE)
    settled = tl.zeros((), tl.uint32)  # the upper bits of the count-th best
    wanted = count
    for step in tl.static_range(4):
        settled, wanted = _next_digit(
            own, vocab, temperature, floor, settled, wanted, 24 - 8 * step, TILE
        )
    length = tl.zeros((), tl.int32)
    peak = tl.full((), float("-inf"), tl.float32)
    for start in range(0, vocab, TILE):
        columns = start + lanes
        value = _scaled(own, columns, vocab, temperature, floor)
        peak = tl.maximum(peak, tl.max(value, axis=0))
        is_kept = (_ordered(value) >= settled) & (value >= _LOWEST)
        kept = is_kept.to(tl.int32)
        at = length + tl.cumsum(kept, axis=0) - 1
        fits = is_kept & (at < capacity)
        tl.store(values + row * capacity + at, value, mask=fits)
        tl.store(ids + row * capacity + at, columns.to(tl.int64), mask=fits)
        length += tl.sum(kept, axis=0)
    tl.store(lengths + row, length)
    bits = tl.where(settled >> 31 == 0, ~settled, settled ^ 0x80000000)
    tl.store(last + row, bits.to(tl.float32, bitcast=True))
    if WITH_MASS:
        mass = tl.zeros((), tl.float64)
        most = tl.maximum(peak, _LOWEST)  # of a row of nothing but -inf, too, a number
        for start in range(0, vocab, TILE):
            value = _scaled(own, start + lanes, vocab, temperature, floor)
            mass += tl.sum(tl.exp(value - most), axis=0).to(tl.float64)
        tl.store(peaks + row, peak)
        tl.store(masses + row, mass)


class TopBuffers:
    """What the kernel writes for a number of rows; lists end in -inf and 0."""

    def __init__(self, rows: int, capacity: int, device: torch.device) -> None:
        self.values = torch.full((rows, capacity), float("-inf"), device=device)
        self.ids = torch.zeros(rows, capacity, dtype=torch.int64, device=device)
        self.lengths = torch.empty(rows, dtype=torch.int32, device=device)
        self.last = torch.empty(rows, device=device)
        self.peaks = torch.empty(rows, device=device)
        self.masses = torch.empty(rows, dtype=torch.float64, device=device)


def top_scores_launch(
    scores: Tensor,
    places: Tensor,
    temperatures: Tensor,
    floors: Tensor,
    count: int,
    buffers: TopBuffers,
    *,
    with_mass: bool,
) -> Launch:
    """Describe the call.

    Args:
        scores: [*, vocab] float32, rows dense.
        places: [rows] int64, rows of scores.
        temperatures: [rows] float32.
        floors: [rows] float32.
        count: of the best; all ties of the last are listed too, as far as they fit.
        buffers: written.
        with_mass: also fill `peaks` and `masses`.
    """
    return Launch(
        kernel=top_scores_kernel,
        grid=(len(places), 1, 1),
        arguments={
            "scores": scores,
            "places": places,
            "temperatures": temperatures,
            "floors": floors,
            "values": buffers.values,
            "ids": buffers.ids,
            "lengths": buffers.lengths,
            "last": buffers.last,
            "peaks": buffers.peaks,
            "masses": buffers.masses,
            "vocab": scores.shape[1],
            "scores_stride": scores.stride(0),
            "count": count,
            "capacity": buffers.values.shape[1],
        },
        constants={"TILE": TILE, "WITH_MASS": with_mass},
        num_warps=8,
        num_stages=1,
    )

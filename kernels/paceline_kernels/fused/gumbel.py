"""Which groups of tokens may hold a row's largest score plus Gumbel noise.

A device's logarithms are not torch's, so the kernel decides nothing: it gives the largest noisy
score of each group of tokens, right within a proven error. Groups in reach of the best are looked
at again by the reference's arithmetic (sampling.py), nearly always one for each row.

Source: the hash and the noise are those of paceline_kernels.gumbel.
"""

import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.fused.runtime import Launch

GROUP = 64
"""Tokens that are named together: the host computes the noise of so many for a row."""
TILE = 2048

ERROR_UNIT = 2.0**-19
"""Times (|best| + 32): how far a noisy score may be from the reference's.

The uniform number is the same bit for bit. Its exponential is off by 2^-17 of itself at most: the
series leaves out u^8 / 9 < 2^-35 for u < 1/16; above it 1 - u is off by 2^-24, its logarithm by
2^-22 more (PTX `lg2.approx`), of 0.064 at least. The second logarithm adds 2^-22 and the rounding
of 22.2 at most, 2^-19.5; the sum one of |value| * 2^-24: less than 2^-16 + |value| * 2^-24. The
reference is off by no more (sample.h).
"""


@triton.jit
def noisy_best_kernel(
    scores, places, temperatures, floors, keys, best,
    vocab, scores_stride,
    GROUPS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Grid: rows x tiles of GROUPS * GROUP tokens. best: [rows, tiles * GROUPS] float32."""
    row = tl.program_id(0)
    columns = tl.program_id(1) * GROUPS * GROUP + tl.arange(0, GROUPS * GROUP)
    place = tl.load(places + row)
    known = columns < vocab
    score = tl.load(scores + place * scores_stride + columns, mask=known, other=float("-inf"))
    scaled = tl.div_rn(score, tl.load(temperatures + row))
    scaled = tl.where(scaled < tl.load(floors + row), float("-inf"), scaled)
    key = tl.load(keys + row)
    low, high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    state = columns.to(tl.uint32) * 0x9E3779B9 + low
    state ^= state >> 16
    state *= 0x85EBCA6B
    state ^= state >> 13
    state = (state + high) * 0xC2B2AE35
    state = (state ^ (state >> 16)) & 0x7FFFFFFF
    u = state.to(tl.int32).to(tl.float32) * 4.656612873077393e-10 + 2.3283064365386963e-10
    u = tl.minimum(u, 0.999999940395355224609375)
    # -log(1 - u): small ones make the large noise, and 1 - u would lose them.
    series = 1 / 6 + u * (1 / 7 + u * (1 / 8))
    series = 1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * series)))
    exponential = tl.where(u < 0.0625, u + u * u * series, -tl.log(1.0 - u))
    noisy = scaled - tl.log(exponential)
    groups = tl.max(tl.reshape(noisy, (GROUPS, GROUP)), axis=1)
    at = (row * tl.num_programs(1) + tl.program_id(1)) * GROUPS + tl.arange(0, GROUPS)
    tl.store(best + at, groups)


def noisy_best_launch(
    scores: Tensor, places: Tensor, temperatures: Tensor, floors: Tensor, keys: Tensor, best: Tensor
) -> Launch:
    """Describe the call.

    Args:
        scores: [*, vocab] float32, rows dense.
        places: [rows] int64, rows of scores.
        temperatures: [rows] float32.
        floors: [rows] float32.
        keys: [rows] int64.
        best: [rows, groups_for(vocab)] float32, written.
    """
    rows, vocab = len(places), scores.shape[1]
    return Launch(
        kernel=noisy_best_kernel,
        grid=(rows, triton.cdiv(vocab, TILE), 1),
        arguments={
            "scores": scores,
            "places": places,
            "temperatures": temperatures,
            "floors": floors,
            "keys": keys,
            "best": best,
            "vocab": vocab,
            "scores_stride": scores.stride(0),
        },
        constants={"GROUPS": TILE // GROUP, "GROUP": GROUP},
        num_warps=4,
        num_stages=1,
    )


def groups_for(vocab: int) -> int:
    """Groups of a row, those behind the last token included."""
    return int(triton.cdiv(vocab, TILE)) * (TILE // GROUP)

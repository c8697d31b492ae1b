"""Counter-based noise: a pure function of (seed, choice, output position, token id).

There is no generator state, so the noise of a position is the same whatever ran beside it, in
which chunks the request was computed, and how often it was preempted.

Source: SplitMix64, Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014;
the Gumbel-max trick, arXiv:1611.00712.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

UInt64 = NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK_64 = (1 << 64) - 1
_BELOW_ONE = 1.0 - 2.0**-24
"""Largest float32 below one: keeps the smallest noise finite."""


def request_key(seed: int | tuple[int, ...], choice: int) -> np.uint64:
    """Key of one request: its seed and which of the n choices it is."""
    state = 0
    parts = seed if isinstance(seed, tuple) else (seed,)
    for part in (*parts, choice):
        state = int(_mix(np.array([(state + _GOLDEN + part) & _MASK_64], dtype=np.uint64))[0])
    return np.uint64(state)


def position_keys(keys: UInt64, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Key of one output position of each request, [n], as the int64 that torch can hold."""
    counter = (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    return _mix(keys + counter).view(np.int64)


def gumbel(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise of each token.

    Args:
        keys: [n, 1] int64, of `position_keys`.
        token_ids: [vocab] or [n, m] int64.

    Returns:
        [n, vocab] or [n, m] float32. Large values keep their resolution: they come from small
        exponentials, and these from small uniform numbers.
    """
    state = (token_ids + 1) * _signed(_GOLDEN) + keys
    state = (state ^ _shifted(state, 30)) * _signed(_MIX_1)
    state = (state ^ _shifted(state, 27)) * _signed(_MIX_2)
    state ^= _shifted(state, 31)
    uniform = _shifted(state, 11).double().add_(0.5).mul_(2.0**-53).float()
    uniform.clamp_(max=_BELOW_ONE)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _mix(state: UInt64) -> UInt64:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX_1)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX_2)
    return state ^ (state >> np.uint64(31))


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (state >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value

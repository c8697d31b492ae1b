"""Counter-based noise: a pure function of (seed, choice, output position, token id).

There is no generator state, so the noise of a position is the same whatever ran beside it, in
which chunks the request was computed, and how often it was preempted.

Source: keys by SplitMix64, Steele et al., "Fast splittable pseudorandom number generators", OOPSLA
2014. The noise of a token under a key is the kernels' (paceline_kernels.gumbel).
"""

import numpy as np

from paceline_engine.core.arrays import Int64, UInt64

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK_64 = (1 << 64) - 1


def request_key(seed: int | tuple[int, ...], choice: int) -> np.uint64:
    """Key of one request: its seed and which of the n choices it is."""
    state = 0
    parts = seed if isinstance(seed, tuple) else (seed,)
    for part in (*parts, choice):
        state = int(_mix(np.array([(state + _GOLDEN + part) & _MASK_64], dtype=np.uint64))[0])
    return np.uint64(state)


def position_keys(keys: UInt64, positions: Int64) -> Int64:
    """Key of one output position of each request, [n], as the int64 that torch can hold."""
    counter = (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    return _mix(keys + counter).view(np.int64)


def _mix(state: UInt64) -> UInt64:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX_1)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX_2)
    return state ^ (state >> np.uint64(31))

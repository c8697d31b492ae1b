"""Counter-based noise: a pure function of (seed, choice, output position, token id).

There is no generator state, so the noise of a position is the same whatever ran beside it, in
which chunks the request was computed, and how often it was preempted.

Source: keys by SplitMix64, Steele et al., "Fast splittable pseudorandom number generators", OOPSLA
2014; tokens by the finaliser of MurmurHash3; the Gumbel-max trick, arXiv:1611.00712.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

UInt64 = NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK_64 = (1 << 64) - 1
_TOKEN_STEP = 0x9E3779B9 - (1 << 32)
_TOKEN_MIX_1 = 0x85EBCA6B - (1 << 32)
_TOKEN_MIX_2 = 0xC2B2AE35 - (1 << 32)
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


class TokenNoise:
    """Standard Gumbel noise of tokens at output positions.

    A position's 64-bit key enters the hash of a token id in two halves, one before and one after
    the first mixing, so that two keys never give shifted copies of each other's noise.
    """

    def __init__(self, vocab_size: int) -> None:
        self._steps = torch.arange(vocab_size, dtype=torch.int32).mul_(_TOKEN_STEP)
        self._scratch = torch.empty((2, 0), dtype=torch.int32)

    def of_vocabulary(self, keys: NDArray[np.int64]) -> Tensor:
        """Noise of every token, [n, vocab] float32; valid until the next call."""
        rows, vocab = len(keys), len(self._steps)
        # Fresh memory for each pass would cost more than the arithmetic.
        if self._scratch.shape[1] < rows * vocab:
            self._scratch = torch.empty((2, rows * vocab), dtype=torch.int32)
        state, spare = (each[: rows * vocab].view(rows, vocab) for each in self._scratch)
        low, high = _halves(keys)
        torch.add(self._steps, low, out=state)
        return _to_gumbel(state, spare, high)

    def of_tokens(self, keys: NDArray[np.int64], token_ids: Tensor) -> Tensor:
        """Noise of chosen tokens: token_ids [n, m] int64 to [n, m] float32."""
        low, high = _halves(keys)
        state = token_ids.to(torch.int32).mul_(_TOKEN_STEP).add_(low)
        return _to_gumbel(state, torch.empty_like(state), high)


def _to_gumbel(state: Tensor, spare: Tensor, high: Tensor) -> Tensor:
    """Mix [n, m] int32 in place and turn it into noise that lies in `spare`.

    Large noise keeps its resolution: it comes from small exponentials, and these from small
    uniform numbers.
    """
    _xor_shifted(state, spare, 16)
    state.mul_(_TOKEN_MIX_1)
    _xor_shifted(state, spare, 13)
    state.add_(high).mul_(_TOKEN_MIX_2)
    _xor_shifted(state, spare, 16)
    uniform = spare.view(torch.float32).copy_(state.bitwise_and_((1 << 31) - 1))
    uniform.mul_(2.0**-31).add_(2.0**-32).clamp_(max=_BELOW_ONE)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _xor_shifted(state: Tensor, spare: Tensor, bits: int) -> None:
    """State ^= state >> bits, the shift being logical; torch's own keeps the sign."""
    torch.bitwise_right_shift(state, bits, out=spare)
    state.bitwise_xor_(spare.bitwise_and_((1 << (32 - bits)) - 1))


def _halves(keys: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Lower and upper 32 bits of each key, [n, 1] int32 each."""
    pairs = torch.from_numpy(np.ascontiguousarray(keys).view(np.int32).reshape(-1, 2))
    return pairs[:, :1], pairs[:, 1:]


def _mix(state: UInt64) -> UInt64:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX_1)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX_2)
    return state ^ (state >> np.uint64(31))

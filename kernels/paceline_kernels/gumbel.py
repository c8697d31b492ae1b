"""Gumbel noise as a pure function of (key, token id); it defines what sampling draws.

Source: the finaliser of MurmurHash3; the Gumbel-max trick, arXiv:1611.00712.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_TOKEN_STEP = 0x9E3779B9 - (1 << 32)
_TOKEN_MIX_1 = 0x85EBCA6B - (1 << 32)
_TOKEN_MIX_2 = 0xC2B2AE35 - (1 << 32)
_BELOW_ONE = 1.0 - 2.0**-24
"""Largest float32 below one: keeps the smallest noise finite."""


def noise_of_tokens(keys: NDArray[np.int64], token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise of chosen tokens: token_ids [n, m] int64 to [n, m] float32.

    A 64-bit key enters the hash of a token id in two halves, one before and one after the first
    mixing, so that two keys never give shifted copies of each other's noise.
    """
    low, high = _halves(keys)
    state = token_ids.to(torch.int32).mul(_TOKEN_STEP).add(low)
    return _to_gumbel(state, torch.empty_like(state), high)


def noise_of_vocabulary(keys: NDArray[np.int64], vocab_size: int) -> Tensor:
    """Noise of every token, [n, vocab] float32."""
    return noise_of_tokens(keys, torch.arange(vocab_size).unsqueeze(0))


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

"""Noise is a pure function of its key and the token, and has Gumbel's distribution."""

import numpy as np
import pytest
import torch
from scipy import stats

from paceline_engine.run.noise import position_keys, request_key
from paceline_kernels.gumbel import noise_of_tokens, noise_of_vocabulary


def keys_of(seeds: range, position: int = 0) -> np.ndarray:
    requests = np.array([request_key(seed, 0) for seed in seeds], dtype=np.uint64)
    return position_keys(requests, np.full(len(requests), position))


@pytest.mark.slow
def test_chosen_tokens_have_the_noise_of_the_whole_vocabulary() -> None:
    keys = keys_of(range(4))
    ids = torch.tensor([[3, 999], [0, 5], [7, 7], [500, 2]])
    whole = noise_of_vocabulary(keys, 1000)
    torch.testing.assert_close(noise_of_tokens(keys, ids), whole.gather(1, ids), rtol=0, atol=0)
    torch.testing.assert_close(noise_of_vocabulary(keys[1:2], 1000)[0], whole[1], rtol=0, atol=0)


@pytest.mark.parametrize("axis", ["tokens of one position", "positions of one token"])
def test_noise_is_standard_gumbel(axis: str) -> None:
    if axis.startswith("tokens"):
        values = noise_of_vocabulary(keys_of(range(1)), 20_000)[0]
    else:
        request = np.full(20_000, request_key(3, 0))
        values = noise_of_vocabulary(position_keys(request, np.arange(20_000)), 2)[:, 1]
    assert torch.isfinite(values).all()
    assert stats.kstest(values.numpy(), stats.gumbel_r.cdf).pvalue > 1e-4


def test_neighbouring_seeds_and_positions_are_unrelated() -> None:
    some = noise_of_vocabulary(keys_of(range(3)), 20_000)
    later = noise_of_vocabulary(keys_of(range(3), position=1), 20_000)
    table = torch.cat((some, later)).numpy()
    related = np.corrcoef(table) - np.eye(len(table))
    assert np.abs(related).max() < 0.04


def test_a_seed_keeps_its_key_for_ever() -> None:
    assert int(request_key(7, 0)) == KNOWN_KEY
    assert request_key(7, 1) != request_key(7, 0)
    assert request_key((7,), 0) == request_key(7, 0)
    assert request_key(-1, 0) != request_key(1, 0)


KNOWN_KEY = 13309476754707697221

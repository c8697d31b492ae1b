"""A whole forward over the Triton kernels, which torch's products join."""

import pytest
import torch

from paceline_kernels.decoder import decoder_forward
from paceline_kernels.testing.decoders import caches_of, decoder_batch, random_decoder

STEPS = [
    [([3, 7, 1], 0, list(range(11))), ([2, 9], 0, [5, 6, 7])],
    [([3, 7, 1], 11, [9]), ([2, 9], 3, list(range(30, 36)))],
]


@pytest.mark.slow
@pytest.mark.parametrize("extras", [False, True])
def test_a_decoder_over_triton_gives_the_numbers_of_the_reference(extras):
    fused = random_decoder("torch", ops_impl="triton", extras=extras)
    reference = random_decoder("reference", extras=extras)
    fused_kv, reference_kv = caches_of(fused), caches_of(reference)
    for rows in STEPS:
        batch = decoder_batch(rows, all_logits=True)
        got = decoder_forward(fused, batch, fused_kv)
        want = decoder_forward(reference, batch, reference_kv)
        # As for the C++: the rounding of some 20 operations on values of size 10 in 3 layers.
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)

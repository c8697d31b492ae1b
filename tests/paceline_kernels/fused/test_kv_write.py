import pytest
import torch

from paceline_kernels import ops
from paceline_kernels.paged_kv import FP8
from paceline_kernels.testing.paged import make_batch

CACHES = (torch.float32, torch.bfloat16, torch.float16, FP8)


@pytest.mark.parametrize("cache_dtype", CACHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_cache_holds_what_the_reference_writes_bit_for_bit(dtype, cache_dtype):
    batch = make_batch([(21, 1), (5, 1)], heads=3, kv_heads=3, head_dim=80, block_size=8)
    batch.slot_mapping[3] = -1
    caches = {}
    for impl in ("reference", "triton"):
        sizes = (batch.num_blocks, 8, 3, 80)
        caches[impl] = ops.new_kv_cache(*sizes, cache_dtype, impl=impl)
        for cache in caches[impl]:
            cache.fill_(float("nan"))
        ops.write_kv(
            batch.k.to(dtype),
            batch.v.to(dtype),
            *caches[impl],
            batch.slot_mapping,
            impl=impl,
            **batch.scales(cache_dtype),
        )
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[cache_dtype.itemsize]
    for want, got in zip(caches["reference"], caches["triton"], strict=True):
        assert torch.equal(got.contiguous().view(bits), want.view(bits))


def test_every_e4m3_step_is_rounded_to_even_and_every_byte_read_back():
    # All finite values of the format, and the middles between them, which go to the even one.
    bytes_ = torch.arange(127, dtype=torch.uint8)
    steps = bytes_.view(FP8).float()
    middles = (steps[1:] + steps[:-1]) / 2
    near = torch.cat((middles * (1 + 2**-20), middles * (1 - 2**-20)))
    odd = torch.tensor([449.0, 1e30, float("inf"), 2**-10, 2**-11, 1e-40, 0.0, float("nan")])
    values = torch.cat((steps, middles, near, odd))
    values = torch.cat((values, -values)).view(1, 1, -1)
    written = {}
    for impl in ("reference", "triton"):
        caches = ops.new_kv_cache(1, 1, 1, values.shape[2], FP8, impl=impl)
        one = torch.ones(1)
        slot = torch.zeros(1, dtype=torch.int64)
        ops.write_kv(values, values, *caches, slot, k_scale=one, v_scale=one, impl=impl)
        written[impl] = caches[0].contiguous().view(torch.uint8)
    assert torch.equal(written["triton"], written["reference"])


def test_keys_may_be_a_slice_of_a_joint_projection():
    joint = torch.randn(3, 4 * 64, generator=torch.Generator().manual_seed(0))
    k, v = joint[:, 64:192].view(3, 2, 64), joint[:, 128:].view(3, 2, 64)
    caches = ops.new_kv_cache(2, 8, 2, 64, torch.float32, impl="triton")
    slots = torch.tensor([9, -1, 0])
    ops.write_kv(k, v, *caches, slots, impl="triton")
    assert torch.equal(caches[0][1, 1], k[0])
    assert torch.equal(caches[1][0, 0], v[2])
    assert caches[0].count_nonzero() == 2 * 128

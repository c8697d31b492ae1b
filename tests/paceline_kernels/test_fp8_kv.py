"""An FP8 cache: what is stored, what is read back, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_kernels import ops
from paceline_kernels.errors import DTypeError, ShapeError
from paceline_kernels.paged_kv import FP8
from paceline_kernels.testing.paged import POISON, error_bound, make_batch

IMPLS = ("reference", "torch", "cpu")
LARGEST = 448.0


def stored(values: torch.Tensor, scale: torch.Tensor, impl: str) -> torch.Tensor:
    """What a cache of one block holds after up to 8 values [n, heads, head_dim] were written."""
    tokens, heads, head_dim = values.shape
    caches = ops.new_kv_cache(1, 8, heads, head_dim, FP8, impl=impl)
    slots = torch.arange(tokens)
    ops.write_kv(values, values, *caches, slots, k_scale=scale, v_scale=scale, impl=impl)
    assert torch.equal(caches[0].view(torch.uint8), caches[1].view(torch.uint8))
    return caches[0][0, :tokens].float()


@pytest.mark.parametrize("impl", IMPLS)
def test_values_are_divided_by_their_heads_scale_and_rounded_to_even(impl):
    # Around 1 the format has steps of 1/8, around its smallest number steps of 2^-9.
    values = torch.tensor([1.0625, 1.1875, 1.07, 2**-10, 3 * 2**-10, -0.0, 0.3, -20.0])
    want = torch.tensor([1.0, 1.25, 1.125, 0.0, 2**-8, 0.0, 0.3125, -20.0])
    two_heads = torch.stack((values, values * 4)).unsqueeze(0)
    got = stored(two_heads, torch.tensor([1.0, 4.0]), impl)
    assert torch.equal(got, torch.stack((want, want)).unsqueeze(0))


@pytest.mark.parametrize("impl", IMPLS)
def test_values_beyond_the_format_saturate(impl):
    values = torch.tensor([448.0, 463.0, 465.0, 1e30, -1e30, float("inf"), -500.0, 7.0])
    got = stored(values.view(1, 1, 8), torch.ones(1), impl)
    want = torch.tensor([LARGEST] * 4 + [-LARGEST, LARGEST, -LARGEST, 7.0])
    assert torch.equal(got.view(8), want)


@pytest.mark.parametrize("impl", IMPLS)
def test_a_value_that_is_no_number_stays_none(impl):
    values = torch.tensor([POISON] + [1.0] * 7)
    assert stored(values.view(1, 1, 8), torch.ones(1), impl).isnan().view(8).tolist() == [
        True,
        *[False] * 7,
    ]


@pytest.mark.parametrize("impl", IMPLS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20), exponent=st.integers(-12, 12))
def test_what_is_read_back_is_within_half_a_step_of_what_was_written(impl, seed, exponent):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(8, 3, 16, generator=generator) * 2.0**exponent
    scale = values.abs().amax(dim=(0, 2)) / LARGEST
    got = stored(values, scale, impl) * scale.unsqueeze(1)
    # 3 bits of mantissa: half a step is 2^-4 of the value; below 2^-6 steps are 2^-9 of the scale.
    # Two roundings of float32 besides, of the quotient and of the product here.
    bound = (2**-4 + 2**-22) * values.abs() + scale.unsqueeze(1) * 2.0**-10
    assert ((got - values).abs() <= bound).all()


@pytest.mark.parametrize("impl", ["torch", "cpu"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_every_implementation_stores_the_same_bytes(impl, seed):
    generator = torch.Generator().manual_seed(seed)
    # Any finite float32, and those that lie half way between two numbers of the format.
    bits = torch.randint(-(2**31), 2**31, (8, 3, 64), generator=generator).int()
    any_float = bits.view(torch.float32).nan_to_num()
    between = torch.randint(0, 2**11, (8, 3, 64), generator=generator).float() / 2**10 * 7.5
    scale = torch.rand(3, generator=generator) + 0.1
    for values, divisor in ((any_float, scale), (between, torch.ones(3)), (between, scale)):
        assert torch.equal(stored(values, divisor, impl), stored(values, divisor, impl="reference"))


@pytest.mark.parametrize("impl", IMPLS)
def test_every_stored_byte_is_read_as_its_value(impl):
    k_cache, v_cache = ops.new_kv_cache(2, 8, 1, 256, FP8, impl=impl)
    every = torch.arange(256, dtype=torch.uint8).view(FP8)
    v_cache[1, 0, 0] = every
    k_cache[1, 0, 0] = torch.ones(256)
    out = ops.paged_attention(
        torch.ones(1, 1, 256),
        k_cache,
        v_cache,
        torch.tensor([[1]], dtype=torch.int32),
        torch.tensor([0, 1], dtype=torch.int32),
        torch.tensor([1], dtype=torch.int32),
        softmax_scale=1.0,
        k_scale=torch.ones(1),
        v_scale=torch.full((1,), 0.5),
        impl=impl,
    )
    assert torch.equal(out[0].nan_to_num(nan=-1.0), (every.float() * 0.5).nan_to_num(nan=-1.0))


@pytest.mark.parametrize("impl", IMPLS)
def test_a_key_that_is_no_number_shows_in_the_result(impl):
    batch = make_batch([(9, 1)], heads=1, kv_heads=1, head_dim=64, block_size=8)
    batch.k[4, 0, 7] = POISON
    scales = {name: torch.ones(1) for name in ("k_scale", "v_scale")}
    caches = ops.new_kv_cache(batch.num_blocks, 8, 1, 64, FP8, impl=impl)
    ops.write_kv(batch.k, batch.v, *caches, batch.slot_mapping, impl=impl, **scales)
    out = ops.paged_attention(
        batch.q,
        *caches,
        batch.block_tables,
        batch.cu_seqlens_q,
        batch.seq_lens,
        softmax_scale=0.1,
        impl=impl,
        **scales,
    )
    assert out.isnan().all()


@st.composite
def batches(draw):
    kv_heads = draw(st.integers(1, 3))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 160))
        rows.append((length, draw(st.one_of(st.just(1), st.integers(1, length)))))
    return make_batch(
        rows,
        heads=kv_heads * draw(st.integers(1, 8)),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from((64, 80, 96, 128, 256))),
        block_size=draw(st.sampled_from((8, 16, 32))),
        seed=draw(st.integers(0, 2**20)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("impl", IMPLS)
@settings(max_examples=25, deadline=None)
@given(
    batch=batches(),
    window=st.one_of(st.none(), st.integers(1, 200)),
    soft_cap=st.one_of(st.none(), st.floats(1.0, 50.0)),
)
def test_attention_reads_the_scaled_values_within_its_rounding(impl, batch, window, soft_cap):
    caches = batch.caches(impl, FP8)
    exact = batch.exact(caches)
    got = batch.attend(impl, caches, window=window, soft_cap=soft_cap)
    want = batch.attend("reference", exact, window=window, soft_cap=soft_cap)
    assert (got.double() - want).abs().max().item() <= error_bound(batch, exact)


@pytest.mark.parametrize("impl", IMPLS)
def test_attention_over_an_fp8_cache_is_that_over_its_values(impl):
    batch = make_batch([(37, 5), (9, 1)], heads=6, kv_heads=2, head_dim=64, block_size=8)
    caches = batch.caches(impl, FP8)
    exact = batch.exact(caches)
    got = batch.attend(impl, caches).double()
    want = batch.attend("reference", exact)
    assert (got - want).abs().max().item() <= error_bound(batch, exact)
    # The scales matter: they differ by head, and one that is left out shows.
    unscaled = batch.attend("reference", (caches[0].double(), caches[1].double()))
    assert (unscaled - want).abs().max().item() > 0.1


@pytest.mark.parametrize("rows", [[(1500, 1)], [(700, 60)]], ids=["split", "widened once"])
def test_long_contexts_and_chunks_are_scaled_once(rows):
    batch = make_batch(rows, heads=6, kv_heads=2, head_dim=64, block_size=16)
    caches = batch.caches("cpu", FP8)
    exact = batch.exact(caches)
    got = batch.attend("cpu", caches, window=900)
    want = batch.attend("reference", exact, window=900)
    assert (got.double() - want).abs().max().item() <= error_bound(batch, exact)


def write(dtype: torch.dtype, scales: dict[str, torch.Tensor]) -> None:
    k = torch.zeros(1, 2, 8)
    ops.write_kv(k, k, *ops.new_kv_cache(2, 8, 2, 8, dtype), torch.tensor([8]), **scales)


def attend(dtype: torch.dtype, scales: dict[str, torch.Tensor]) -> None:
    batch = make_batch([(3, 1)], heads=2, kv_heads=2, head_dim=8, block_size=8)
    ops.paged_attention(
        batch.q,
        *ops.new_kv_cache(8, 8, 2, 8, dtype),
        batch.block_tables,
        batch.cu_seqlens_q,
        batch.seq_lens,
        softmax_scale=1.0,
        **scales,
    )


@pytest.mark.parametrize("call", [write, attend])
@pytest.mark.parametrize(
    ("error", "message", "dtype", "scales"),
    [
        (DTypeError, "k_scale must be given", FP8, {}),
        (DTypeError, "v_scale must be given", FP8, {"k_scale": torch.ones(2)}),
        (
            DTypeError,
            "v_scale must be None unless the cache is float8_e4m3fn, got bfloat16",
            torch.bfloat16,
            {"v_scale": torch.ones(2)},
        ),
        (ShapeError, "k_scale must be", FP8, {"k_scale": torch.ones(1), "v_scale": torch.ones(2)}),
        (
            DTypeError,
            "k_scale must be float32",
            FP8,
            {"k_scale": torch.ones(2).double(), "v_scale": torch.ones(2)},
        ),
    ],
)
def test_scales_come_with_an_fp8_cache_and_no_other(call, error, message, dtype, scales):
    with pytest.raises(error, match=message):
        call(dtype, scales)


@pytest.mark.parametrize("call", [write, attend])
def test_one_scale_per_head_is_taken(call):
    call(FP8, {"k_scale": torch.ones(2), "v_scale": torch.ones(2)})

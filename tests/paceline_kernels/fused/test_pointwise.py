"""Norms, rotary embedding, activations and gathers under the interpreter, in every format."""

import pytest
import torch

from paceline_kernels import ops
from paceline_kernels.errors import DTypeError, ShapeError
from paceline_kernels.paged_kv import FP8

FORMATS = (torch.float32, torch.bfloat16, torch.float16)
U = 2.0**-24  # unit roundoff of float32


def noise(*sizes, seed=0, scale=1.0, dtype=torch.float32):
    return (torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def half_unit(dtype, want):
    """What rounding to the output's format adds: nothing for float32, which the bound has."""
    if dtype == torch.float32:
        return torch.zeros_like(want)
    info = torch.finfo(dtype)
    return want.abs() * info.eps / 2 + info.smallest_normal * info.eps / 2


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("hidden", [7, 64, 576])
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm_matches_the_reference_within_its_rounding(dtype, hidden, with_residual):
    x, weight = noise(3, hidden, dtype=dtype), noise(hidden, seed=1)
    residual = noise(3, hidden, seed=2, dtype=dtype) if with_residual else None
    out, total = ops.rms_norm(x, weight, 1e-5, residual, impl="triton")
    exact_total = x if residual is None else (x.float() + residual.float()).to(dtype)
    assert torch.equal(total, exact_total)
    want, _ = ops.rms_norm(exact_total.double(), weight.double(), 1e-5, impl="reference")
    # The mean of n squares is off by gamma(n + 1), its root by half of that; the root's own
    # rounding, the quotient's, and two products follow.
    bound = ((hidden + 1) / 2 + 5) * U * want.abs() + half_unit(dtype, want)
    assert ((out.double() - want).abs() <= 1.01 * bound).all()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 80), (96, 48), (10, 6)])
def test_rotary_turns_in_place_and_leaves_the_rest(dtype, head_dim, rotary_dim):
    joint = noise(4, 5 * head_dim, dtype=dtype)
    q = joint[:, : 3 * head_dim].view(4, 3, head_dim)
    k = joint[:, 3 * head_dim :].view(4, 2, head_dim)
    exact_q, exact_k = q.double(), k.double()
    positions = torch.tensor([0, 39, 7, 7])
    cos_sin = noise(40, rotary_dim, seed=3).clamp(-1, 1)
    ops.rotary_(exact_q, exact_k, positions, cos_sin, impl="reference")
    ops.rotary_(q, k, positions, cos_sin, impl="triton")
    # Two products and one sum: at most 2 * u of the terms' sizes, |cos| and |sin| <= 1.
    largest = float(max(exact_q.abs().max(), exact_k.abs().max(), joint.double().abs().max()))
    bound = 2 * U * 2 * largest
    for got, want in ((q, exact_q), (k, exact_k)):
        assert ((got.double() - want).abs() <= 1.01 * (bound + half_unit(dtype, want))).all()
        assert torch.equal(got[..., rotary_dim:].double(), want[..., rotary_dim:])


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16, FP8])
@pytest.mark.parametrize("rotary_dim", [64, 48])
def test_rotary_with_the_write_does_what_both_do_one_after_the_other(cache_dtype, rotary_dim):
    scale = torch.tensor([0.01, 0.004]) if cache_dtype == FP8 else None
    cos_sin = noise(40, rotary_dim, seed=3).clamp(-1, 1)
    positions, slots = torch.tensor([0, 39, 7]), torch.tensor([9, -1, 14])
    results = {}
    for impl in ("reference", "triton"):
        joint = noise(3, 7 * 64, dtype=torch.bfloat16)
        q, k, v = (part.view(3, -1, 64) for part in joint.split([3 * 64, 2 * 64, 2 * 64], dim=1))
        caches = ops.new_kv_cache(2, 8, 2, 64, cache_dtype, impl=impl)
        for cache in caches:
            cache.fill_(float("nan"))
        ops.rotary_write_kv_(
            q, k, v, positions, cos_sin, *caches, slots, k_scale=scale, v_scale=scale, impl=impl
        )
        results[impl] = (joint.float(), *(cache.float() for cache in caches))
    for want, got in zip(results["reference"], results["triton"], strict=True):
        assert torch.equal(got.isnan(), want.isnan())
        # Bit for bit: under the interpreter both round each product and sum of bfloat16 alike.
        assert torch.equal(got.nan_to_num(), want.nan_to_num())


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("width", [1, 90, 1536])
def test_silu_and_mul_matches_the_reference_within_its_rounding(dtype, width):
    x = noise(2, 2 * width, scale=30.0, dtype=dtype)
    got = ops.silu_and_mul(x, impl="triton").double()
    want = ops.silu_and_mul(x.double(), impl="reference")
    # exp: 4 units; sum, quotient, product: one each. Where e^-x leaves float32 (gate < -87) the
    # exact value is below |gate| * e^-87 * |up|, and 0 is as good.
    bound = 8 * U * want.abs() + x.abs().max().double() ** 2 * 1.2e-38 + half_unit(dtype, want)
    assert ((got - want).abs() <= 1.01 * bound).all()


@pytest.mark.parametrize("dtype", FORMATS)
def test_embedding_gathers_rows_exactly(dtype):
    table = noise(10, 70, dtype=torch.bfloat16)
    ids = torch.tensor([3, 9, 0, 3])
    assert torch.equal(ops.embedding(ids, table, dtype, impl="triton"), table[ids].to(dtype))


def test_what_the_kernels_cannot_read_is_refused():
    with pytest.raises(DTypeError, match="x must be float32 or bfloat16 or float16"):
        ops.silu_and_mul(torch.zeros(2, 4, dtype=torch.float64), impl="triton")
    apart = torch.zeros(2, 2, 128)[:, :, ::2]
    with pytest.raises(ShapeError, match="dense last dimension"):
        ops.rotary_(apart, apart, torch.zeros(2, dtype=torch.int64), noise(4, 64), impl="triton")
    split = torch.zeros(2, 4, 64)[:, ::2]
    with pytest.raises(ShapeError, match="dense heads"):
        ops.rotary_(split, split, torch.zeros(2, dtype=torch.int64), noise(4, 64), impl="triton")

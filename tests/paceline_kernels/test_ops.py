import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_kernels import ops
from paceline_kernels.errors import DTypeError, ImplUnavailableError, ShapeError

IMPLS = ("torch", "cpu")
U = 2.0**-24  # unit roundoff of float32


def noise(*sizes, seed=0, scale=1.0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("hidden", [1, 7, 64, 576, 1000])
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm_matches_the_reference_within_its_rounding(impl, hidden, with_residual):
    x, weight = noise(5, hidden), noise(hidden, seed=1)
    residual = noise(5, hidden, seed=2) if with_residual else None
    out, total = ops.rms_norm(x, weight, 1e-5, residual, impl=impl)
    exact_total = x if residual is None else x + residual
    want, _ = ops.rms_norm(exact_total.double(), weight.double(), 1e-5, impl="reference")
    # The mean of n squares is off by gamma(n + 1), its root by half of that, and three more
    # roundings follow: the root's, and two products.
    bound = ((hidden + 1) / 2 + 4) * U * want.abs()
    assert ((out.double() - want).abs() <= bound).all()
    assert torch.equal(total, exact_total)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 80), (96, 48), (10, 6)])
def test_rotary_turns_in_place_and_leaves_the_rest(impl, head_dim, rotary_dim):
    # q and k are slices of one buffer, as they come out of a joint projection.
    joint = noise(6, 5 * head_dim)
    q = joint[:, : 3 * head_dim].view(6, 3, head_dim)
    k = joint[:, 3 * head_dim :].view(6, 2, head_dim)
    exact_q, exact_k = q.double(), k.double()
    positions = torch.tensor([0, 1, 2, 39, 7, 7])
    cos_sin = noise(40, rotary_dim, seed=3).clamp(-1, 1)
    ops.rotary_(exact_q, exact_k, positions, cos_sin, impl="reference")
    ops.rotary_(q, k, positions, cos_sin, impl=impl)
    # Two products and one sum: at most 2 * u of the terms' sizes, |cos| and |sin| <= 1.
    bound = 2 * U * 2 * joint.abs().max()
    for got, want in ((q, exact_q), (k, exact_k)):
        assert (got.double() - want).abs().max() <= bound
        assert torch.equal(got[..., rotary_dim:].double(), want[..., rotary_dim:])


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("width", [1, 8, 90, 1536])
def test_silu_and_mul_matches_the_reference_within_its_rounding(impl, width):
    x = noise(4, 2 * width, scale=30.0)
    got = ops.silu_and_mul(x, impl=impl).double()
    want = ops.silu_and_mul(x.double(), impl="reference")
    # exp: 4 units; sum, quotient, product: one each. Where e^-x leaves float32 (gate < -87) the
    # exact value is below |gate| * e^-87 * |up|, and 0 is as good.
    bound = 8 * U * want.abs() + x.abs().max().double() ** 2 * 1.2e-38
    assert ((got - want).abs() <= bound).all()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(1, 40),
    out_features=st.integers(1, 100),
    in_features=st.integers(1, 300),
    with_bias=st.booleans(),
)
def test_linear_matches_the_reference_within_its_rounding(
    impl, dtype, tokens, out_features, in_features, with_bias
):
    x = noise(tokens, in_features)
    weight = noise(out_features, in_features, seed=1).to(dtype)
    bias = noise(out_features, seed=2) if with_bias else None
    prepared = ops.prepare_linear(weight, bias, impl=impl)
    want = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    size = x.abs().double() @ weight.abs().double().T + (0 if bias is None else bias.abs())
    bound = (in_features + 1) * U * 1.01 * size  # gamma(k + 1) of the terms' sizes
    assert ((ops.linear(x, prepared).double() - want).abs() <= bound).all()
    residual = noise(tokens, out_features, seed=3)
    added = residual.clone()
    ops.linear_add_(added, x, prepared)
    total = residual.double() + want
    assert ((added.double() - total).abs() <= bound + U * total.abs() * 1.01 + U * size).all()


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 6, 7, 13, 400])
@pytest.mark.parametrize("ffn", [8, 20, 96])
def test_the_gated_product_is_silu_of_gate_times_up(tokens, ffn):
    x, weight, bias = noise(tokens, 64), noise(2 * ffn, 64, seed=1), noise(2 * ffn, seed=2)
    prepared = ops.prepare_linear(weight.bfloat16(), bias, impl="cpu", is_gated=True)
    both = x.double() @ weight.bfloat16().double().T + bias.double()
    want = ops.silu_and_mul(both, impl="reference")
    size = x.abs().double() @ weight.abs().double().T + bias.abs()
    gate_size, up_size = size.chunk(2, dim=1)
    # silu's slope is at most 1.1; both factors carry the product's error.
    error = 1.1 * 65 * U * (gate_size * both.chunk(2, dim=1)[1].abs() + up_size * gate_size)
    got = ops.linear_silu_mul(x, prepared).double()
    assert ((got - want).abs() <= 1.05 * error + 10 * U * want.abs()).all()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_embedding_gathers_rows_exactly(impl, dtype):
    table = noise(50, 30).to(dtype)
    ids = torch.tensor([3, 49, 0, 3], dtype=torch.int32)
    assert torch.equal(ops.embedding(ids, table, impl=impl), table[ids.long()].float())


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ShapeError, "weight must be", lambda: ops.rms_norm(noise(2, 8), noise(7), 1e-5)),
        (ShapeError, "eps must be > 0", lambda: ops.rms_norm(noise(2, 8), noise(8), 0.0)),
        (
            DTypeError,
            "residual must be float32",
            lambda: ops.rms_norm(noise(2, 8), noise(8), 1e-5, noise(2, 8).bfloat16()),
        ),
        (
            DTypeError,
            "x must be float32",
            lambda: ops.rms_norm(noise(2, 8).half(), noise(8), 1e-5, impl="cpu"),
        ),
        (
            ShapeError,
            "x must be contiguous",
            lambda: ops.rms_norm(noise(8, 2).T, noise(8), 1e-5, impl="cpu"),
        ),
        (ShapeError, "even number", lambda: ops.silu_and_mul(noise(2, 7))),
        (
            ShapeError,
            "rotary_dim must be even",
            lambda: ops.rotary_(noise(2, 1, 8), noise(2, 1, 8), torch.zeros(2).long(), noise(4, 7)),
        ),
        (
            ShapeError,
            "x must be",
            lambda: ops.linear(noise(2, 8), ops.prepare_linear(noise(4, 7))),
        ),
        (
            ShapeError,
            "linear_silu_mul alone",
            lambda: ops.linear(noise(2, 8), ops.prepare_linear(noise(4, 8), is_gated=True)),
        ),
        (
            DTypeError,
            "takes float32 activations",
            lambda: ops.prepare_linear(noise(4, 8), impl="cpu", dtype=torch.bfloat16),
        ),
        (DTypeError, "token_ids must be", lambda: ops.embedding(noise(3), noise(4, 8))),
        (ImplUnavailableError, "impl must be", lambda: ops.silu_and_mul(noise(2, 8), impl="cuda")),
    ],
)
def test_wrong_arguments_are_refused_by_name(error, message, call):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.slow
def test_importing_the_operations_imports_no_triton():
    code = (
        "import sys, paceline_kernels.ops, paceline_kernels.decoder; print('triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.slow
@pytest.mark.usefixtures("cpp_compiler")
def test_a_forked_child_computes_with_threads_of_its_own():
    code = (
        "import os, torch; from paceline_kernels import ops; ops.set_cpu_threads(2); "
        "x = torch.randn(64, 512); want = ops.silu_and_mul(x, impl='cpu'); child = os.fork(); "
        "got = ops.silu_and_mul(x, impl='cpu'); "
        "status = 0 if torch.equal(got, want) else 1; "
        "os._exit(status) if child == 0 else print(os.waitpid(child, 0)[1], status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["0", "0"]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_new_cache_is_zero_and_takes_no_memory_before_it_is_written(impl):
    # 2 GiB each, of which a few pages are ever touched.
    k_cache, v_cache = ops.new_kv_cache(1 << 18, 16, 4, 64, torch.bfloat16, impl=impl)
    assert k_cache.shape == v_cache.shape == (1 << 18, 16, 4, 64)
    k_cache[5, 3] = 1
    assert k_cache[5].sum() == 4 * 64
    assert v_cache[-1].abs().max() == 0

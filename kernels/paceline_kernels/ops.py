"""One entry per operation: arguments are checked, the implementation is picked by name.

Implementations: "reference" (eager torch, defines the result), "torch" (torch's own kernels),
"cpu" (our C++, float32 activations; `cpu_unavailable_reason()` is None where it runs) and "triton"
(GPUs). Nothing falls back: a name that cannot run here raises ImplUnavailableError.
"""

import torch
from torch import Tensor

from paceline_kernels import checks
from paceline_kernels.cpu import library
from paceline_kernels.errors import ShapeError
from paceline_kernels.implementations import IMPLS, module_of
from paceline_kernels.linear import (
    LinearWeight,
    linear,
    linear_add_,
    linear_silu_mul,
    prepare_linear,
)
from paceline_kernels.paged_kv import check_write, new_kv_cache, paged_attention, write_kv
from paceline_kernels.sampling import sample_gumbel, sample_top
from paceline_kernels.speculation import verify_drafts

__all__ = [
    "IMPLS",
    "LinearWeight",
    "cpu_unavailable_reason",
    "embedding",
    "linear",
    "linear_add_",
    "linear_silu_mul",
    "new_kv_cache",
    "paged_attention",
    "prepare_linear",
    "rms_norm",
    "rotary_",
    "rotary_write_kv_",
    "sample_gumbel",
    "sample_top",
    "set_cpu_threads",
    "silu_and_mul",
    "verify_drafts",
    "write_kv",
]


def cpu_unavailable_reason() -> str | None:
    """Why impl "cpu" cannot run here (no compiler), or None; may compile, once per CPU kind."""
    return library.unavailable_reason()


def set_cpu_threads(num_threads: int) -> None:
    """Size the pool of impl "cpu", the caller's thread included; default: the usable cores.

    Raises:
        ImplUnavailableError: impl "cpu" cannot run here.
    """
    library.configure(num_threads)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    *,
    impl: str = "torch",
) -> tuple[Tensor, Tensor]:
    """Add the residual, then normalise: returns (out, x + residual), both in x's format.

    Args:
        x: [tokens, hidden], float32, bfloat16 or float16.
        weight: [hidden], any float format.
        eps: added to the mean square.
        residual: [tokens, hidden] in x's format, or None: then x itself is the new residual.
        impl: name of the implementation.

    Raises:
        ShapeError: sizes that do not fit.
        DTypeError: formats that differ.
    """
    checks.expect_shape("x", x, (None, None), "tokens, hidden")
    checks.expect_dtype("x", x, checks.FLOATS)
    checks.expect_shape("weight", weight, (x.shape[1],), "hidden")
    checks.expect_dtype("weight", weight, checks.FLOATS)
    checks.expect_positive("eps", eps)
    if residual is not None:
        checks.expect_shape("residual", residual, tuple(x.shape), "tokens, hidden")
        checks.expect_dtype("residual", residual, (x.dtype,))
    result: tuple[Tensor, Tensor] = module_of(impl).rms_norm(x, weight, eps, residual)
    return result


def rotary_(
    q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, *, impl: str = "torch"
) -> None:
    """Rotate q and k in place by their positions, halves paired (neox style).

    Args:
        q: [tokens, heads, head_dim]; k: [tokens, num_kv_heads, head_dim], same float format.
        k: see q.
        positions: [tokens] int64; entries of cos_sin's rows.
        cos_sin: [max_position, rotary_dim] float32, first half cosines, second half sines;
            rotary_dim is even and at most head_dim, the rest of a head stays.
        impl: name of the implementation.

    Raises:
        ShapeError: sizes that do not fit.
        DTypeError: formats that do not fit.
    """
    _check_rotary(q, k, positions, cos_sin)
    module_of(impl).rotary_(q, k, positions, cos_sin)


def rotary_write_kv_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    impl: str = "torch",
) -> None:
    """Rotate q and k in place, then write k and v into the paged cache; "triton" in one pass.

    Args:
        q: as rotary_; k, positions, cos_sin likewise.
        k: see q.
        v: as write_kv; k_cache, v_cache, slot_mapping, k_scale, v_scale likewise.
        positions: see q.
        cos_sin: see q.
        k_cache: see v.
        v_cache: see v.
        slot_mapping: see v; a token with slot -1 is rotated, not written.
        k_scale: see v.
        v_scale: see v.
        impl: name of the implementation.

    Raises:
        ShapeError: sizes that do not fit.
        DTypeError: formats that do not fit.
    """
    _check_rotary(q, k, positions, cos_sin)
    check_write(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)
    module = module_of(impl)
    caches = (k_cache, v_cache, slot_mapping)
    if impl == "triton":
        module.rotary_write_kv_(
            q, k, v, positions, cos_sin, *caches, k_scale=k_scale, v_scale=v_scale
        )
        return
    module.rotary_(q, k, positions, cos_sin)
    module.write_kv(k, v, *caches, k_scale=k_scale, v_scale=v_scale)


def _check_rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    checks.expect_shape("q", q, (None, None, None), "tokens, heads, head_dim")
    checks.expect_shape("k", k, (q.shape[0], None, q.shape[2]), "tokens, num_kv_heads, head_dim")
    checks.expect_dtype("q", q, checks.FLOATS)
    checks.expect_dtype("k", k, (q.dtype,))
    checks.expect_shape("positions", positions, (q.shape[0],), "tokens")
    checks.expect_dtype("positions", positions, (torch.int64,))
    checks.expect_shape("cos_sin", cos_sin, (None, None), "max_position, rotary_dim")
    checks.expect_dtype("cos_sin", cos_sin, (torch.float32, torch.float64))
    if cos_sin.shape[1] % 2 or cos_sin.shape[1] > q.shape[2]:
        raise ShapeError(
            f"rotary_dim must be even and <= head_dim {q.shape[2]}, got {cos_sin.shape[1]}"
        )


def silu_and_mul(x: Tensor, *, impl: str = "torch") -> Tensor:
    """Multiply silu(first half) by the second half: x [tokens, 2 * f] -> [tokens, f] in x's format.

    Raises:
        ShapeError: x is not two-dimensional with an even number of columns.
        DTypeError: x is not float.
    """
    checks.expect_shape("x", x, (None, None), "tokens, 2 * f")
    checks.expect_dtype("x", x, checks.FLOATS)
    if x.shape[1] % 2:
        raise ShapeError(f"x must have an even number of columns (gate and up), got {x.shape[1]}")
    result: Tensor = module_of(impl).silu_and_mul(x)
    return result


def embedding(
    token_ids: Tensor, weight: Tensor, dtype: torch.dtype = torch.float32, *, impl: str = "torch"
) -> Tensor:
    """Rows of the table weight [vocab, hidden] for token_ids [tokens] int32 or int64.

    Returns:
        [tokens, hidden] in `dtype`.

    Raises:
        ShapeError: sizes that do not fit.
        DTypeError: formats that do not fit.
    """
    checks.expect_shape("token_ids", token_ids, (None,), "tokens")
    checks.expect_dtype("token_ids", token_ids, (torch.int32, torch.int64))
    checks.expect_shape("weight", weight, (None, None), "vocab, hidden")
    checks.expect_dtype("weight", weight, checks.FLOATS)
    result: Tensor = module_of(impl).embedding(token_ids, weight, dtype)
    return result

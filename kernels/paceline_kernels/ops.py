"""One entry per operation: arguments are checked, the implementation is picked by name.

Implementations: "reference" (eager torch, defines the result), "torch" (torch's own kernels) and
"cpu" (our C++, float32 activations; `cpu_unavailable_reason()` is None where it runs). Nothing
falls back: a name that cannot run here raises ImplUnavailableError.

Layout of the KV cache: both tensors are [num_blocks, block_size, num_kv_heads, head_dim] in
indices; the strides are those of `new_kv_cache(..., impl=...)`. For "cpu" the keys of a block lie
as [num_kv_heads, head_dim, block_size] and the values as [num_kv_heads, block_size, head_dim], so
that scores of neighbouring tokens and outputs of neighbouring dimensions are lanes of one vector.
A block is contiguous along dimension 0 in every layout.
"""

from types import ModuleType

import torch
from torch import Tensor

from paceline_kernels import checks, reference, torch_path
from paceline_kernels.cpu import library
from paceline_kernels.cpu import path as cpu_path
from paceline_kernels.errors import ImplUnavailableError, ShapeError
from paceline_kernels.kv_memory import lazy_zeros
from paceline_kernels.linear import (
    IMPLS,
    LinearWeight,
    linear,
    linear_add_,
    linear_silu_mul,
    prepare_linear,
    project_rows,
)
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
    "project_rows",
    "rms_norm",
    "rotary_",
    "sample_gumbel",
    "sample_top",
    "set_cpu_threads",
    "silu_and_mul",
    "verify_drafts",
    "write_kv",
]

_MODULES: dict[str, ModuleType] = {"reference": reference, "torch": torch_path, "cpu": cpu_path}


def _module(impl: str) -> ModuleType:
    if impl not in _MODULES:
        raise ImplUnavailableError(f"impl must be one of {', '.join(IMPLS)}, got {impl!r}")
    return _MODULES[impl]


def cpu_unavailable_reason() -> str | None:
    """Why impl "cpu" cannot run here (no compiler), or None; may compile, once per CPU kind."""
    return library.unavailable_reason()


def set_cpu_threads(num_threads: int) -> None:
    """Size the pool of impl "cpu", the caller's thread included; default: the usable cores.

    Raises:
        ImplUnavailableError: impl "cpu" cannot run here.
    """
    library.configure(num_threads)


def new_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    *,
    impl: str = "torch",
) -> tuple[Tensor, Tensor]:
    """Make one layer's (k_cache, v_cache), zeroed, in the memory order that `impl` reads best.

    Pages are taken from the machine when they are first written, and in large ones for "cpu".

    Returns:
        Two tensors [num_blocks, block_size, num_kv_heads, head_dim]; use them by index, their
        strides belong to the implementation. One block is contiguous bytes along dimension 0.
    """
    if _module(impl) is cpu_path:
        return cpu_path.new_kv_cache(num_blocks, block_size, num_kv_heads, head_dim, dtype)
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    return lazy_zeros(shape, dtype), lazy_zeros(shape, dtype)


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
    result: tuple[Tensor, Tensor] = _module(impl).rms_norm(x, weight, eps, residual)
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
    _module(impl).rotary_(q, k, positions, cos_sin)


def write_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    impl: str = "torch",
) -> None:
    """Write new keys and values into the paged cache, rounded to its format.

    Args:
        k: [tokens, num_kv_heads, head_dim] float; v likewise.
        v: see k.
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim]; v_cache likewise.
        v_cache: see k_cache.
        slot_mapping: [tokens] int64, block * block_size + offset; -1: the token is not written.
        impl: name of the implementation.

    Raises:
        ShapeError: sizes that do not fit.
        DTypeError: formats that do not fit.
    """
    checks.expect_shape("k", k, (None, None, None), "tokens, num_kv_heads, head_dim")
    checks.expect_shape("v", v, tuple(k.shape), "tokens, num_kv_heads, head_dim")
    checks.expect_dtype("k", k, checks.FLOATS)
    checks.expect_dtype("v", v, (k.dtype,))
    _check_caches(k_cache, v_cache, k.shape[1], k.shape[2])
    checks.expect_shape("slot_mapping", slot_mapping, (k.shape[0],), "tokens")
    checks.expect_dtype("slot_mapping", slot_mapping, (torch.int64,))
    _module(impl).write_kv(k, v, k_cache, v_cache, slot_mapping)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    *,
    softmax_scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    impl: str = "torch",
) -> Tensor:
    """Causal attention over the paged cache, prefill chunks and decodes in one call.

    Row r's queries are q[cu_seqlens_q[r]:cu_seqlens_q[r + 1]], the last tokens of its context;
    their keys and values are already written.

    Args:
        q: [tokens, heads, head_dim] float.
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim], heads a multiple of
            num_kv_heads; v_cache likewise.
        v_cache: see k_cache.
        block_tables: [rows, max_blocks] int32; entries behind a row's context are not read.
        cu_seqlens_q: [rows + 1] int32, starts with 0, grows, ends at most at tokens.
        seq_lens: [rows] int32, context with the new tokens.
        softmax_scale: multiplies the scores.
        sliding_window: a query sees this many last positions, its own included; None: all.
        soft_cap: scores become soft_cap * tanh(scores / soft_cap); None: as they are.
        impl: name of the implementation.

    Returns:
        [tokens, heads * head_dim] in q's format.

    Raises:
        ShapeError: sizes that do not fit.
        DTypeError: formats that do not fit.
    """
    checks.expect_shape("q", q, (None, None, None), "tokens, heads, head_dim")
    checks.expect_dtype("q", q, checks.FLOATS)
    _check_caches(k_cache, v_cache, None, q.shape[2])
    if q.shape[1] % k_cache.shape[2]:
        raise ShapeError(
            f"heads must be a multiple of num_kv_heads, got {q.shape[1]} and {k_cache.shape[2]}"
        )
    checks.expect_shape("seq_lens", seq_lens, (None,), "rows")
    rows = seq_lens.shape[0]
    checks.expect_shape("block_tables", block_tables, (rows, None), "rows, max_blocks")
    checks.expect_shape("cu_seqlens_q", cu_seqlens_q, (rows + 1,), "rows + 1")
    for name, tensor in (
        ("seq_lens", seq_lens),
        ("block_tables", block_tables),
        ("cu_seqlens_q", cu_seqlens_q),
    ):
        checks.expect_dtype(name, tensor, (torch.int32,))
    checks.expect_positive("softmax_scale", softmax_scale)
    if sliding_window is not None:
        checks.expect_positive("sliding_window", sliding_window)
    if soft_cap is not None:
        checks.expect_positive("soft_cap", soft_cap)
    _check_row_lengths(q, k_cache, block_tables, cu_seqlens_q, seq_lens)
    result: Tensor = _module(impl).paged_attention(
        q,
        k_cache,
        v_cache,
        block_tables,
        cu_seqlens_q,
        seq_lens,
        softmax_scale=softmax_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
    )
    return result


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
    result: Tensor = _module(impl).silu_and_mul(x)
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
    result: Tensor = _module(impl).embedding(token_ids, weight, dtype)
    return result


def _check_caches(
    k_cache: Tensor, v_cache: Tensor, num_kv_heads: int | None, head_dim: int
) -> None:
    legend = "num_blocks, block_size, num_kv_heads, head_dim"
    checks.expect_shape("k_cache", k_cache, (None, None, num_kv_heads, head_dim), legend)
    checks.expect_shape("v_cache", v_cache, tuple(k_cache.shape), legend)
    checks.expect_dtype("k_cache", k_cache, checks.FLOATS)
    checks.expect_dtype("v_cache", v_cache, (k_cache.dtype,))


def _check_row_lengths(
    q: Tensor, k_cache: Tensor, block_tables: Tensor, cu_seqlens_q: Tensor, seq_lens: Tensor
) -> None:
    """Refuse rows that would read or write outside their tensors (values are on the CPU)."""
    new = cu_seqlens_q.diff()
    if int(cu_seqlens_q[0]) != 0 or bool((new < 1).any()) or int(cu_seqlens_q[-1]) > q.shape[0]:
        raise ShapeError(
            f"cu_seqlens_q must start with 0, grow, and end at most at tokens {q.shape[0]}, "
            f"got {cu_seqlens_q.tolist()}"
        )
    if bool((seq_lens < new).any()):
        raise ShapeError(
            f"seq_lens must be >= the row's new tokens, got {seq_lens.tolist()} "
            f"for {new.tolist()} new tokens"
        )
    capacity = block_tables.shape[1] * k_cache.shape[1]
    if bool((seq_lens > capacity).any()):
        raise ShapeError(
            f"seq_lens must be <= max_blocks * block_size = {capacity}, got {seq_lens.tolist()}"
        )

"""The paged KV cache: making it, writing it, and attention over it. Re-exported by ops.

Layout: both tensors are [num_blocks, block_size, num_kv_heads, head_dim] in indices; the strides
are those of `new_kv_cache(..., impl=...)`. For "cpu" the keys of a block lie as [num_kv_heads,
head_dim, block_size] and the values as [num_kv_heads, block_size, head_dim], so that scores of
neighbouring tokens and outputs of neighbouring dimensions are lanes of one vector. For "triton"
both lie as the values do: a program reads a block for one head. A block is contiguous along
dimension 0 in every layout.

An FP8 cache (float8_e4m3fn) holds each value divided by its head's scale, in float32, saturated at
+-448 and rounded to the nearest, ties to even; whoever reads multiplies by the scale.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from paceline_kernels import checks
from paceline_kernels.errors import ShapeError
from paceline_kernels.implementations import module_of
from paceline_kernels.kv_memory import lazy_zeros

FP8 = checks.FP8
_LEGEND = "num_blocks, block_size, num_kv_heads, head_dim"


class LayerKv(NamedTuple):
    """One layer's cache: keys and values as `new_kv_cache` makes them, and the scales of FP8."""

    k_cache: Tensor
    v_cache: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None


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

    They lie where the implementation works: on the current GPU for "triton", else on the CPU, where
    pages are taken from the machine when they are first written, and in large ones for "cpu".

    Returns:
        Two tensors [num_blocks, block_size, num_kv_heads, head_dim]; use them by index, their
        strides belong to the implementation. One block is contiguous bytes along dimension 0.
    """
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    if impl in {"cpu", "triton"}:
        caches: tuple[Tensor, Tensor] = module_of(impl).new_kv_cache(*shape, dtype)
        return caches
    module_of(impl)  # refuses a name that is none
    return lazy_zeros(shape, dtype), lazy_zeros(shape, dtype)


def write_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    impl: str = "torch",
) -> None:
    """Write new keys and values into the paged cache, rounded to its format.

    Args:
        k: [tokens, num_kv_heads, head_dim] float; v likewise.
        v: see k.
        k_cache: [num_blocks, block_size, num_kv_heads, head_dim]; v_cache likewise.
        v_cache: see k_cache.
        slot_mapping: [tokens] int64, block * block_size + offset; -1: the token is not written.
        k_scale: [num_kv_heads] float32, for an FP8 cache and no other; v_scale likewise.
        v_scale: see k_scale.
        impl: name of the implementation.

    Raises:
        ShapeError: sizes that do not fit.
        DTypeError: formats that do not fit.
    """
    check_write(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)
    module_of(impl).write_kv(k, v, k_cache, v_cache, slot_mapping, k_scale=k_scale, v_scale=v_scale)


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
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
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
        k_scale: [num_kv_heads] float32, for an FP8 cache and no other; v_scale likewise.
        v_scale: see k_scale.
        impl: name of the implementation.

    Returns:
        [tokens, heads * head_dim] in q's format.

    Raises:
        ShapeError: sizes that do not fit.
        DTypeError: formats that do not fit.
    """
    _check_queries(q, k_cache, v_cache)
    checks.expect_kv_scales(k_cache, k_scale, v_scale)
    _check_rows(q, k_cache, block_tables, cu_seqlens_q, seq_lens)
    _check_options(softmax_scale, sliding_window, soft_cap)
    result: Tensor = module_of(impl).paged_attention(
        q,
        k_cache,
        v_cache,
        block_tables,
        cu_seqlens_q,
        seq_lens,
        softmax_scale=softmax_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        k_scale=k_scale,
        v_scale=v_scale,
    )
    return result


def check_write(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    """Refuse arguments of a write that do not fit together; see write_kv."""
    checks.expect_shape("k", k, (None, None, None), "tokens, num_kv_heads, head_dim")
    checks.expect_shape("v", v, tuple(k.shape), "tokens, num_kv_heads, head_dim")
    checks.expect_dtype("k", k, checks.FLOATS)
    checks.expect_dtype("v", v, (k.dtype,))
    _check_caches(k_cache, v_cache, k.shape[1], k.shape[2])
    checks.expect_kv_scales(k_cache, k_scale, v_scale)
    checks.expect_shape("slot_mapping", slot_mapping, (k.shape[0],), "tokens")
    checks.expect_dtype("slot_mapping", slot_mapping, (torch.int64,))


def _check_caches(
    k_cache: Tensor, v_cache: Tensor, num_kv_heads: int | None, head_dim: int
) -> None:
    checks.expect_shape("k_cache", k_cache, (None, None, num_kv_heads, head_dim), _LEGEND)
    checks.expect_shape("v_cache", v_cache, tuple(k_cache.shape), _LEGEND)
    checks.expect_dtype("k_cache", k_cache, checks.KV_FORMATS)
    checks.expect_dtype("v_cache", v_cache, (k_cache.dtype,))


def _check_queries(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    checks.expect_shape("q", q, (None, None, None), "tokens, heads, head_dim")
    checks.expect_dtype("q", q, checks.FLOATS)
    _check_caches(k_cache, v_cache, None, q.shape[2])
    if q.shape[1] % k_cache.shape[2]:
        raise ShapeError(
            f"heads must be a multiple of num_kv_heads, got {q.shape[1]} and {k_cache.shape[2]}"
        )


def _check_options(
    softmax_scale: float, sliding_window: int | None, soft_cap: float | None
) -> None:
    checks.expect_positive("softmax_scale", softmax_scale)
    if sliding_window is not None:
        checks.expect_positive("sliding_window", sliding_window)
    if soft_cap is not None:
        checks.expect_positive("soft_cap", soft_cap)


def _check_rows(
    q: Tensor, k_cache: Tensor, block_tables: Tensor, cu_seqlens_q: Tensor, seq_lens: Tensor
) -> None:
    """Refuse rows that do not fit together, or would read or write outside their tensors."""
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
    if seq_lens.device.type != "cpu":
        return  # a look at the values would wait for the device at every layer
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

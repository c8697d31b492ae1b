"""The operations on Triton kernels; arguments were checked by ops.

Values in a device's memory are not checked: reading them would wait for the device.
"""

import torch
from torch import Tensor

from paceline_kernels import checks
from paceline_kernels.errors import ShapeError
from paceline_kernels.fused import runtime
from paceline_kernels.fused.attention import AttentionCall, attend
from paceline_kernels.fused.kv_write import write_kv_launch
from paceline_kernels.fused.norm import rms_norm_launch
from paceline_kernels.fused.pointwise import embedding_launch, silu_and_mul_launch
from paceline_kernels.fused.rotary import rotary_launch

_FORMATS = (torch.float32, torch.bfloat16, torch.float16)


def _expect(name: str, tensor: Tensor) -> None:
    """A float tensor in reach whose last dimension is dense."""
    runtime.expect_on_device(name, tensor)
    checks.expect_dtype(name, tensor, _FORMATS)
    if tensor.numel() and tensor.stride(-1) != 1:
        raise ShapeError(
            f"{name} must have a dense last dimension for impl 'triton', got strides "
            f"{list(tensor.stride())}"
        )


def _expect_heads(name: str, tensor: Tensor) -> None:
    """[tokens, heads, head_dim] with dense heads; tokens may lie apart (a slice of q | k | v)."""
    _expect(name, tensor)
    if tensor.numel() and tensor.shape[1] > 1 and tensor.stride(1) != tensor.shape[2]:
        raise ShapeError(
            f"{name} must have dense heads for impl 'triton', got sizes {list(tensor.shape)} with "
            f"strides {list(tensor.stride())}"
        )


def _expect_caches(k_cache: Tensor, v_cache: Tensor) -> None:
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        runtime.expect_on_device(name, cache)
        checks.expect_dtype(name, cache, (*_FORMATS, torch.float8_e4m3fn))
        if cache.numel() and cache.stride(3) != 1:
            raise ShapeError(
                f"{name} must have a dense head_dim for impl 'triton', as new_kv_cache gives it, "
                f"got strides {list(cache.stride())}"
            )


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See ops.rms_norm."""
    _expect("x", x)
    _expect("weight", weight)
    out, total = torch.empty(x.shape, dtype=x.dtype, device=x.device), x
    if residual is not None:
        _expect("residual", residual)
        total = torch.empty_like(out)
    runtime.run(rms_norm_launch(x, residual, weight, eps, out, total))
    return out, total


def _expect_rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    _expect_heads("q", q)
    _expect_heads("k", k)
    runtime.expect_on_device("positions", positions)
    checks.expect_dtype("cos_sin", cos_sin, (torch.float32,))
    runtime.expect_on_device("cos_sin", cos_sin)
    checks.expect_rows_contiguous("cos_sin", cos_sin)


def rotary_(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """See ops.rotary_."""
    _expect_rotary(q, k, positions, cos_sin)
    runtime.run(rotary_launch(q, k, positions.contiguous(), cos_sin, None))


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
) -> None:
    """See ops.rotary_write_kv_: one pass over the keys instead of two."""
    _expect_rotary(q, k, positions, cos_sin)
    _expect_heads("v", v)
    _expect_caches(k_cache, v_cache)
    write = (v, k_cache, v_cache, slot_mapping.contiguous(), k_scale, v_scale)
    runtime.run(rotary_launch(q, k, positions.contiguous(), cos_sin, write))


def silu_and_mul(x: Tensor) -> Tensor:
    """See ops.silu_and_mul."""
    _expect("x", x)
    out = torch.empty(x.shape[0], x.shape[1] // 2, dtype=x.dtype, device=x.device)
    runtime.run(silu_and_mul_launch(x, out))
    return out


def embedding(token_ids: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """See ops.embedding."""
    runtime.expect_on_device("token_ids", token_ids)
    _expect("weight", weight)
    out = torch.empty(token_ids.shape[0], weight.shape[1], dtype=dtype, device=weight.device)
    _expect("the embedding", out)
    runtime.run(embedding_launch(token_ids.contiguous(), weight, out))
    return out


def new_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The tokens of a block and head lie together: a program reads them for one head."""
    device = "cpu" if runtime.is_interpreting() else "cuda"
    sizes = (num_blocks, num_kv_heads, block_size, head_dim)
    k_cache, v_cache = (torch.zeros(sizes, dtype=dtype, device=device) for _ in range(2))
    return k_cache.transpose(1, 2), v_cache.transpose(1, 2)


def write_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """See ops.write_kv."""
    _expect_heads("k", k)
    _expect_heads("v", v)
    _expect_caches(k_cache, v_cache)
    runtime.run(
        write_kv_launch(k, v, k_cache, v_cache, slot_mapping.contiguous(), k_scale, v_scale)
    )


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
    num_splits: int | None = None,
) -> Tensor:
    """See ops.paged_attention; num_splits: parts of every context, None: chosen from the sizes."""
    _expect("q", q)
    _expect_caches(k_cache, v_cache)
    for name, tensor in (
        ("block_tables", block_tables),
        ("cu_seqlens_q", cu_seqlens_q),
        ("seq_lens", seq_lens),
    ):
        runtime.expect_on_device(name, tensor)
    call = AttentionCall(
        q=q,
        k_cache=k_cache,
        v_cache=v_cache,
        block_tables=block_tables if block_tables.stride(-1) == 1 else block_tables.contiguous(),
        cu_seqlens_q=cu_seqlens_q.contiguous(),
        seq_lens=seq_lens.contiguous(),
        softmax_scale=softmax_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        k_scale=k_scale,
        v_scale=v_scale,
        is_fp8_native=runtime.is_fp8_native(q.device),
        precision=runtime.float32_precision(),
    )
    return attend(call, num_splits=num_splits)

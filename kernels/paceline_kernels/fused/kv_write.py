"""Writing keys and values into the paged cache, rounded or quantised on the way."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.fused.configs import power_of_two
from paceline_kernels.fused.numbers import narrow, to_e4m3
from paceline_kernels.fused.runtime import Launch


@triton.jit
def store_rounded(pointers, values, mask, scale, FP8: tl.constexpr):
    """Store float32 values; FP8: as e4m3 bytes of values / scale."""
    if FP8:
        tl.store(pointers, to_e4m3(tl.div_rn(values, scale)), mask=mask)
    else:
        tl.store(pointers, narrow(values, pointers.dtype.element_ty), mask=mask)


@triton.jit
def write_kv_kernel(
    k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale,
    k_stride, v_stride,
    k_stride_block, k_stride_token, k_stride_head,
    v_stride_block, v_stride_token, v_stride_head,
    HEADS: tl.constexpr, ALL_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, FP8: tl.constexpr, HAS_SCALES: tl.constexpr,
):  # fmt: skip
    """Grid: tokens; a token whose slot is -1 is not read."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if slot < 0:
        return
    heads = tl.arange(0, ALL_HEADS)
    dims = tl.arange(0, DIM)
    mask = (heads < HEADS)[:, None] & (dims < HEAD_DIM)[None, :]
    from_at = heads[:, None] * HEAD_DIM + dims[None, :]
    k_scales = tl.full([ALL_HEADS, 1], 1.0, dtype=tl.float32)
    v_scales = k_scales
    if HAS_SCALES:
        k_scales = tl.load(k_scale + heads, mask=heads < HEADS, other=1.0)[:, None]
        v_scales = tl.load(v_scale + heads, mask=heads < HEADS, other=1.0)[:, None]
    block = slot // BLOCK_SIZE
    within = slot % BLOCK_SIZE
    keys = tl.load(k + token * k_stride + from_at, mask=mask, other=0).to(tl.float32)
    values = tl.load(v + token * v_stride + from_at, mask=mask, other=0).to(tl.float32)
    k_at = block * k_stride_block + within * k_stride_token + heads[:, None] * k_stride_head
    v_at = block * v_stride_block + within * v_stride_token + heads[:, None] * v_stride_head
    store_rounded(k_cache + k_at + dims[None, :], keys, mask, k_scales, FP8)
    store_rounded(v_cache + v_at + dims[None, :], values, mask, v_scales, FP8)


def write_kv_launch(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> Launch:
    """Describe the call; k and v are [tokens, heads, head_dim] with dense heads."""
    tokens, heads, head_dim = k.shape
    is_fp8 = k_cache.dtype == torch.float8_e4m3fn
    if is_fp8:
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    return Launch(
        kernel=write_kv_kernel,
        grid=(tokens, 1, 1),
        arguments={
            "k": k,
            "v": v,
            "k_cache": k_cache,
            "v_cache": v_cache,
            "slot_mapping": slot_mapping,
            "k_scale": k_scale,
            "v_scale": v_scale,
            "k_stride": k.stride(0),
            "v_stride": v.stride(0),
            **cache_strides(k_cache, v_cache),
        },
        constants={
            "HEADS": heads,
            "ALL_HEADS": power_of_two(heads),
            "HEAD_DIM": head_dim,
            "DIM": power_of_two(head_dim),
            "BLOCK_SIZE": k_cache.shape[1],
            "FP8": is_fp8,
            "HAS_SCALES": k_scale is not None,
        },
        num_warps=4 if heads * head_dim >= 512 else 1,
        num_stages=1,
    )


def cache_strides(k_cache: Tensor, v_cache: Tensor) -> dict[str, int]:
    """Kernel arguments k_stride_block, ..., v_stride_head."""
    return {
        f"{name}_stride_{what}": cache.stride(axis)
        for name, cache in (("k", k_cache), ("v", v_cache))
        for axis, what in enumerate(("block", "token", "head"))
    }

"""Rotary embedding in place, alone or with the write of the rotated keys and the values.

Source: RoFormer, arXiv:2104.09864, in the half-split form of GPT-NeoX.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.fused.configs import power_of_two
from paceline_kernels.fused.kv_write import cache_strides, store_rounded
from paceline_kernels.fused.numbers import narrow
from paceline_kernels.fused.runtime import Launch


@triton.jit
def rotate_heads(
    base, cos, sin,
    HEADS: tl.constexpr, ALL_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr, ALL_HALF: tl.constexpr,
):  # fmt: skip
    """Rotate a token's heads where they lie; gives both new halves, rounded to their format."""
    heads = tl.arange(0, ALL_HEADS)[:, None]
    half = tl.arange(0, ALL_HALF)[None, :]
    mask = (heads < HEADS) & (half < HALF)
    at = base + heads * HEAD_DIM + half
    first = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    new_first = narrow(first * cos - second * sin, base.dtype.element_ty)
    new_second = narrow(second * cos + first * sin, base.dtype.element_ty)
    tl.store(at, new_first, mask=mask)
    tl.store(at + HALF, new_second, mask=mask)
    return new_first, new_second


@triton.jit
def rotary_kernel(
    q, k, v, positions, cos_sin, k_cache, v_cache, slot_mapping, k_scale, v_scale,
    q_stride, k_stride, v_stride,
    k_stride_block, k_stride_token, k_stride_head,
    v_stride_block, v_stride_token, v_stride_head,
    HEADS: tl.constexpr, ALL_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr, ALL_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, ALL_HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WRITES: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Grid: tokens.

    WRITES: what was rounded to k's format and stored there is rounded or quantised once more into
    the cache, as two calls would do; a token whose slot is -1 is rotated alone.
    """
    token = tl.program_id(0).to(tl.int64)
    half = tl.arange(0, ALL_HALF)[None, :]
    table = cos_sin + tl.load(positions + token) * (2 * HALF) + half
    cos = tl.load(table, mask=half < HALF, other=0.0)
    sin = tl.load(table + HALF, mask=half < HALF, other=0.0)
    q_base = q + token * q_stride
    k_base = k + token * k_stride
    rotate_heads(q_base, cos, sin, HEADS, ALL_HEADS, HEAD_DIM, HALF, ALL_HALF)
    first, second = rotate_heads(k_base, cos, sin, KV_HEADS, ALL_KV_HEADS, HEAD_DIM, HALF, ALL_HALF)
    if WRITES:
        slot = tl.load(slot_mapping + token)
        if slot >= 0:
            heads = tl.arange(0, ALL_KV_HEADS)[:, None]
            dims = tl.arange(0, DIM)[None, :]
            is_head = heads < KV_HEADS
            k_scales = tl.full([ALL_KV_HEADS, 1], 1.0, dtype=tl.float32)
            v_scales = k_scales
            if FP8:
                k_scales = tl.load(k_scale + heads, mask=is_head, other=1.0)
                v_scales = tl.load(v_scale + heads, mask=is_head, other=1.0)
            block = slot // BLOCK_SIZE
            within = slot % BLOCK_SIZE
            k_to = k_cache + block * k_stride_block + within * k_stride_token
            k_to += heads * k_stride_head
            is_half = is_head & (half < HALF)
            store_rounded(k_to + half, first.to(tl.float32), is_half, k_scales, FP8)
            store_rounded(k_to + HALF + half, second.to(tl.float32), is_half, k_scales, FP8)
            if HEAD_DIM > 2 * HALF:
                # The part of a head that is not rotated.
                is_rest = is_head & (dims >= 2 * HALF) & (dims < HEAD_DIM)
                rest = tl.load(k_base + heads * HEAD_DIM + dims, mask=is_rest, other=0.0)
                store_rounded(k_to + dims, rest.to(tl.float32), is_rest, k_scales, FP8)
            is_value = is_head & (dims < HEAD_DIM)
            values = tl.load(
                v + token * v_stride + heads * HEAD_DIM + dims, mask=is_value, other=0.0
            )
            v_to = v_cache + block * v_stride_block + within * v_stride_token
            v_to += heads * v_stride_head
            store_rounded(v_to + dims, values.to(tl.float32), is_value, v_scales, FP8)


def rotary_launch(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    write: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None] | None,
) -> Launch:
    """Describe the call.

    Args:
        q: [tokens, heads, head_dim] with dense heads; k likewise.
        k: see q.
        positions: [tokens] int64.
        cos_sin: [max_position, rotary_dim] float32, dense.
        write: None, or (v, k_cache, v_cache, slot_mapping, k_scale, v_scale).
    """
    tokens, heads, head_dim = q.shape
    kv_heads, half = k.shape[1], cos_sin.shape[1] // 2
    v, k_cache, v_cache, slot_mapping, k_scale, v_scale = write or (None,) * 6
    is_fp8 = k_cache is not None and k_cache.dtype == torch.float8_e4m3fn
    strides = dict.fromkeys(
        (f"{name}_stride_{what}" for name in "kv" for what in ("block", "token", "head")), 0
    )
    if k_cache is not None and v_cache is not None:
        if is_fp8:
            k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
        strides = cache_strides(k_cache, v_cache)
    return Launch(
        kernel=rotary_kernel,
        grid=(tokens, 1, 1),
        arguments={
            "q": q,
            "k": k,
            "v": v,
            "positions": positions,
            "cos_sin": cos_sin,
            "k_cache": k_cache,
            "v_cache": v_cache,
            "slot_mapping": slot_mapping,
            "k_scale": k_scale,
            "v_scale": v_scale,
            "q_stride": q.stride(0),
            "k_stride": k.stride(0),
            "v_stride": 0 if v is None else v.stride(0),
            **strides,
        },
        constants={
            "HEADS": heads,
            "ALL_HEADS": power_of_two(heads),
            "KV_HEADS": kv_heads,
            "ALL_KV_HEADS": power_of_two(kv_heads),
            "HEAD_DIM": head_dim,
            "DIM": power_of_two(head_dim),
            "HALF": half,
            "ALL_HALF": power_of_two(half),
            "BLOCK_SIZE": 1 if k_cache is None else k_cache.shape[1],
            "WRITES": write is not None,
            "FP8": is_fp8,
        },
        num_warps=min(8, max(1, power_of_two(heads) * power_of_two(half) // 512)),
        num_stages=1,
    )

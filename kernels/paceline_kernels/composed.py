"""One decoder layer as a composition of ops: the reference of the C++, and any layer alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline_kernels import ops
from paceline_kernels.linear import LinearWeight
from paceline_kernels.paged_kv import LayerKv

if TYPE_CHECKING:
    from paceline_kernels.decoder import DecoderBatch, DecoderShape, PreparedLayer


def layer_forward(
    residual: Tensor,
    layer: PreparedLayer,
    kv: LayerKv,
    batch: DecoderBatch,
    *,
    shape: DecoderShape,
    cos_sin: Tensor,
    impl: str,
) -> Tensor:
    """Run a layer and write its keys and values.

    Args:
        residual: [tokens, hidden] float32; may be written.
        layer: its weights.
        kv: its cache, in the memory order of `impl`.
        batch: the step.
        shape: sizes.
        cos_sin: [max_position, rotary_dim] float32.
        impl: of everything but the products.

    Returns:
        [tokens, hidden] float32, the residual behind the layer.
    """
    q = write_layer_kv(residual, layer, kv, batch, shape=shape, cos_sin=cos_sin, impl=impl)
    attended = ops.paged_attention(
        q,
        kv.k_cache,
        kv.v_cache,
        batch.block_tables,
        batch.cu_seqlens_q,
        batch.seq_lens,
        k_scale=kv.k_scale,
        v_scale=kv.v_scale,
        softmax_scale=shape.softmax_scale,
        sliding_window=layer.sliding_window,
        soft_cap=shape.soft_cap,
        impl=impl,
    )
    residual = _added(residual, attended, layer.o)
    x, _ = ops.rms_norm(residual, layer.post_norm, shape.eps, impl=impl)
    act = ops.linear_silu_mul(x.to(layer.gate_up.dtype), layer.gate_up)
    return _added(residual, act, layer.down)


def write_layer_kv(
    residual: Tensor,
    layer: PreparedLayer,
    kv: LayerKv,
    batch: DecoderBatch,
    *,
    shape: DecoderShape,
    cos_sin: Tensor,
    impl: str,
) -> Tensor:
    """Write a layer's keys and values and leave out what reads them; arguments as `layer_forward`.

    Returns:
        Rotated queries, [tokens, heads, head_dim] float32.
    """
    x = residual
    if layer.input_norm is not None:
        x, _ = ops.rms_norm(residual, layer.input_norm, shape.eps, impl=impl)
    sizes = [shape.heads * shape.head_dim] + [shape.kv_heads * shape.head_dim] * 2
    q, k, v = (
        part.reshape(part.shape[0], -1, shape.head_dim)
        for part in torch.split(product(x, layer.qkv), sizes, dim=1)
    )
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = (
            ops.rms_norm(heads.flatten(0, 1), weight, shape.eps, impl=impl)[0].view_as(heads)
            for heads, weight in ((q, layer.q_norm), (k, layer.k_norm))
        )
    ops.rotary_write_kv_(
        q,
        k,
        v,
        batch.positions,
        cos_sin,
        kv.k_cache,
        kv.v_cache,
        batch.slot_mapping,
        k_scale=kv.k_scale,
        v_scale=kv.v_scale,
        impl=impl,
    )
    return q


def product(x: Tensor, weight: LinearWeight) -> Tensor:
    """Float32 x [tokens, in] times a weight of whatever format: [tokens, out] float32."""
    return ops.linear(x.to(weight.dtype), weight).float()


def _added(residual: Tensor, x: Tensor, weight: LinearWeight) -> Tensor:
    """The residual plus a product, in place where their formats are one."""
    if weight.dtype == residual.dtype:
        ops.linear_add_(residual, x, weight)
        return residual
    return residual + product(x, weight)

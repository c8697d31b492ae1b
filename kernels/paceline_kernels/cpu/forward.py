"""A decoder as the C++ side takes it: one structure of pointers, made once; one call per step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline_kernels import checks
from paceline_kernels.cpu import library, path
from paceline_kernels.errors import ShapeError

if TYPE_CHECKING:
    from paceline_kernels.decoder import DecoderBatch, DecoderShape, PreparedLayer
    from paceline_kernels.linear import LinearWeight
    from paceline_kernels.paged_kv import LayerKv


@dataclass(slots=True)
class NativeDecoder:
    """The structure, what it points into, and memory that steps reuse (mutable for that).

    Attributes:
        kept: tensors and structures that the pointers need alive.
        workspace: float32, grows to the largest step seen.
        caches: one structure per layer, and the tensors' addresses they were made for.
    """

    struct: library.Decoder
    kept: tuple[object, ...]
    shape: DecoderShape
    workspace: Tensor
    caches: ctypes.Array[library.KvCache] | None
    cache_key: tuple[int, ...]


def describe(
    shape: DecoderShape,
    layers: Sequence[PreparedLayer],
    embedding: Tensor,
    final_norm: Tensor,
    lm_head: LinearWeight,
    cos_sin: Tensor,
) -> NativeDecoder:
    """Make the structure; sizes were checked by prepare_decoder.

    Raises:
        ShapeError: head_dim is no multiple of 8.
    """
    if shape.head_dim % 8:
        raise ShapeError(
            f"head_dim must be a multiple of 8 for impl 'cpu', got {shape.head_dim}; use 'torch'"
        )
    structs = (library.Layer * len(layers))()
    for struct, layer in zip(structs, layers, strict=True):
        assert layer.input_norm is not None
        struct.input_norm = layer.input_norm.data_ptr()
        struct.qkv = _weight(layer.qkv)
        struct.q_norm = None if layer.q_norm is None else layer.q_norm.data_ptr()
        struct.k_norm = None if layer.k_norm is None else layer.k_norm.data_ptr()
        struct.o = _weight(layer.o)
        struct.post_norm = layer.post_norm.data_ptr()
        struct.gate_up = _weight(layer.gate_up)
        struct.down = _weight(layer.down)
        struct.window = layer.sliding_window or 0
    decoder = library.Decoder(
        layers=structs,
        embedding=embedding.data_ptr(),
        final_norm=final_norm.data_ptr(),
        cos_sin=cos_sin.data_ptr(),
        lm_head=_weight(lm_head),
        num_layers=len(layers),
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        ffn=shape.ffn,
        rotary_dim=shape.rotary_dim,
        embedding_format=library.format_of("embedding", embedding.dtype),
        eps=shape.eps,
        scale=shape.softmax_scale,
        cap=shape.soft_cap or 0.0,
        embedding_scale=shape.embedding_scale,
    )
    return NativeDecoder(
        struct=decoder,
        kept=(structs, tuple(layers), embedding, final_norm, lm_head, cos_sin),
        shape=shape,
        workspace=torch.empty(0),
        caches=None,
        cache_key=(),
    )


def _weight(weight: LinearWeight) -> library.Weight:
    assert weight.packed is not None
    return weight.packed.struct


def run(
    native: NativeDecoder,
    batch: DecoderBatch,
    kv_caches: Sequence[LayerKv],
    hidden_out: Tensor | None,
) -> Tensor:
    """See decoder.decoder_forward."""
    rt = library.runtime()
    tokens, num_logits = batch.token_ids.shape[0], batch.logit_rows.shape[0]
    logits = torch.empty(num_logits, native.shape.vocab)
    if tokens == 0:
        return logits
    needed = rt.lib.paceline_workspace_bytes(ctypes.byref(native.struct), tokens) // 4
    if native.workspace.numel() < needed:
        native.workspace = torch.empty(needed)
    struct = library.Batch(
        token_ids=batch.token_ids.data_ptr(),
        positions=batch.positions.data_ptr(),
        slots=batch.slot_mapping.data_ptr(),
        block_tables=batch.block_tables.data_ptr(),
        cu_seqlens_q=batch.cu_seqlens_q.data_ptr(),
        seq_lens=batch.seq_lens.data_ptr(),
        logit_rows=batch.logit_rows.data_ptr(),
        logits=logits.data_ptr(),
        hidden_out=None if hidden_out is None else hidden_out.data_ptr(),
        caches=_caches(native, kv_caches),
        workspace=native.workspace.data_ptr(),
        table_stride=batch.block_tables.stride(0),
        num_tokens=tokens,
        num_rows=batch.seq_lens.shape[0],
        num_logit_rows=num_logits,
    )
    rt.lib.paceline_forward(rt.context, ctypes.byref(native.struct), ctypes.byref(struct))
    return logits


def _caches(native: NativeDecoder, kv_caches: Sequence[LayerKv]) -> ctypes.Array[library.KvCache]:
    """The caches' structures, checked and made once for the same tensors."""
    key = tuple(tensor.data_ptr() for layer in kv_caches for tensor in layer if tensor is not None)
    if native.caches is not None and native.cache_key == key:
        return native.caches
    shape = native.shape
    made = (library.KvCache * len(kv_caches))()
    for index, layer in enumerate(kv_caches):
        k_cache, v_cache = layer.k_cache, layer.v_cache
        sizes = (None, None, shape.kv_heads, shape.head_dim)
        checks.expect_shape("k_cache", k_cache, sizes, "num_blocks, block_size, kv_heads, head_dim")
        checks.expect_shape("v_cache", v_cache, tuple(k_cache.shape), "as k_cache")
        checks.expect_dtype("v_cache", v_cache, (k_cache.dtype,))
        checks.expect_kv_scales(k_cache, layer.k_scale, layer.v_scale)
        made[index] = path.kv_cache_struct(*layer)
        if (made[index].block_size, made[index].format) != (made[0].block_size, made[0].format):
            raise ShapeError("all layers' caches must have one block size and one number format")
    native.caches, native.cache_key = made, key
    return made

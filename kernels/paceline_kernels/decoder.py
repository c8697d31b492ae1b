"""A whole forward of a Llama-like decoder in one call.

Per-operation calls cost a small model more than its products: some two hundred crossings from
Python and as many thread wake-ups a step. `prepare_decoder` lays out the weights once,
`decoder_forward` runs all layers: impl "cpu" in one C++ call, "torch" and "reference" as a
composition of ops with the same result, which is what the C++ is tested against.

Residual stream and activations are float32. All rows' keys and values of a layer are written
before any row's attention of that layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from paceline_kernels import checks, composed, ops
from paceline_kernels.cpu import forward as cpu_forward
from paceline_kernels.errors import ShapeError
from paceline_kernels.linear import LinearWeight
from paceline_kernels.paged_kv import LayerKv


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """Sizes and constants of a decoder.

    Attributes:
        rotary_dim: columns of cos_sin, even, <= head_dim.
        eps: of every norm.
        soft_cap: of attention scores, None: none.
        embedding_scale: multiplies the embedding.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rotary_dim: int
    eps: float
    softmax_scale: float
    soft_cap: float | None = None
    embedding_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """One layer's weights as the checkpoint has them.

    Attributes:
        input_norm, post_norm: [hidden].
        qkv: [(heads + 2 * kv_heads) * head_dim, hidden], q then k then v; qkv_bias or None.
        q_norm, k_norm: [head_dim], applied to every head before rotary, or None (both).
        o: [hidden, heads * head_dim]; gate_up: [2 * ffn, hidden], gate first; down: [hidden, ffn].
        sliding_window: None: full attention.
    """

    input_norm: Tensor
    qkv: Tensor
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor
    qkv_bias: Tensor | None = None
    o_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    sliding_window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLayer:
    """One layer's weights as an implementation takes them; norms are float32.

    Attributes:
        input_norm: None: the layer reads its input as it is, for `composed.layer_forward` alone.
    """

    input_norm: Tensor | None
    qkv: LinearWeight
    o: LinearWeight
    post_norm: Tensor
    gate_up: LinearWeight
    down: LinearWeight
    q_norm: Tensor | None
    k_norm: Tensor | None
    sliding_window: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A model laid out for one implementation; made by `prepare_decoder` layer by layer.

    Attributes:
        embedding: [vocab, hidden], rows are read where they lie (a mapped checkpoint may stay).
        cos_sin: [max_position, rotary_dim] float32.
        impl: of the linear layers; ops_impl: of everything else, and of the KV caches.
        native: the C++ side's description, when both are "cpu".
    """

    impl: str
    ops_impl: str
    shape: DecoderShape
    layers: tuple[PreparedLayer, ...]
    embedding: Tensor
    final_norm: Tensor
    lm_head: LinearWeight
    cos_sin: Tensor
    native: cpu_forward.NativeDecoder | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderBatch:
    """One step's rows. All tensors are contiguous and on the device of the weights.

    Attributes:
        token_ids, positions, slot_mapping: [tokens] int64; slot -1: not written.
        block_tables: [rows, max_blocks] int32 (rows may lie apart); cu_seqlens_q: [rows + 1] int32,
            ends at tokens; seq_lens: [rows] int32 with the new tokens.
        logit_rows: [n] int64, tokens whose logits are wanted.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    logit_rows: Tensor

    def to(self, device: torch.device) -> "DecoderBatch":
        """The same step in a device's memory; the very same batch if it is there already."""
        if self.token_ids.device == device:
            return self
        moved = {
            field.name: getattr(self, field.name).to(device, non_blocking=True)
            for field in fields(self)
        }
        return DecoderBatch(**moved)


def prepare_layer(
    layer: DecoderLayer, *, impl: str, dtype: torch.dtype = torch.float32
) -> PreparedLayer:
    """Lay out one layer; the caller may drop the checkpoint's tensors afterwards.

    Raises:
        ShapeError, DTypeError, ImplUnavailableError: as prepare_linear.
    """
    if (layer.q_norm is None) != (layer.k_norm is None):
        raise ShapeError("q_norm and k_norm must be given both or not at all")

    def norm(weight: Tensor) -> Tensor:
        return weight.float().contiguous()

    return PreparedLayer(
        input_norm=norm(layer.input_norm),
        qkv=ops.prepare_linear(layer.qkv, layer.qkv_bias, impl=impl, dtype=dtype),
        o=ops.prepare_linear(layer.o, layer.o_bias, impl=impl, dtype=dtype),
        post_norm=norm(layer.post_norm),
        gate_up=ops.prepare_linear(layer.gate_up, impl=impl, dtype=dtype, is_gated=True),
        down=ops.prepare_linear(layer.down, impl=impl, dtype=dtype),
        q_norm=None if layer.q_norm is None else norm(layer.q_norm),
        k_norm=None if layer.k_norm is None else norm(layer.k_norm),
        sliding_window=layer.sliding_window,
    )


def prepare_decoder(
    shape: DecoderShape,
    layers: Sequence[PreparedLayer],
    *,
    embedding: Tensor,
    final_norm: Tensor,
    lm_head: LinearWeight,
    cos_sin: Tensor,
    ops_impl: str | None = None,
) -> Decoder:
    """Put prepared layers together; all of one impl, which `decoder_forward` then runs.

    Products may take bfloat16 activations (prepared so for "torch"): their inputs are rounded to
    it, everything between the products stays float32.

    Args:
        shape: sizes; every weight is checked against them.
        layers: from prepare_layer.
        embedding: [vocab, hidden] float, contiguous.
        final_norm: [hidden].
        lm_head: prepared [vocab, hidden].
        cos_sin: [max_position, rotary_dim] float32.
        ops_impl: implementation of all but the products; None: the products' own.

    Raises:
        ShapeError: a weight that does not fit the shape, or mixed implementations.
        DTypeError: a format that does not fit.
    """
    _check_weights(shape, layers, embedding, final_norm, lm_head, cos_sin)
    impl = lm_head.impl
    final_norm = final_norm.float().contiguous()
    ops_impl = ops_impl or impl
    native = None
    if impl == ops_impl == "cpu":
        native = cpu_forward.describe(shape, layers, embedding, final_norm, lm_head, cos_sin)
    return Decoder(
        impl=impl,
        ops_impl=ops_impl,
        shape=shape,
        layers=tuple(layers),
        embedding=embedding,
        final_norm=final_norm,
        lm_head=lm_head,
        cos_sin=cos_sin,
        native=native,
    )


def decoder_forward(
    decoder: Decoder,
    batch: DecoderBatch,
    kv_caches: Sequence[LayerKv],
    *,
    hidden_out: Tensor | None = None,
) -> Tensor:
    """Run one step and return the logits of batch.logit_rows: [n, vocab] float32.

    Args:
        decoder: the model.
        batch: the step; values are trusted to lie inside the tables (the runner made them).
        kv_caches: one per layer, from new_kv_cache of the decoder's ops_impl; written.
        hidden_out: [tokens, hidden] float32; gets the final norm's output of every token.

    Raises:
        ShapeError: sizes that do not fit.
        DTypeError: formats that do not fit.
    """
    _check_batch(decoder, batch, kv_caches, hidden_out)
    if decoder.native is not None:
        return cpu_forward.run(decoder.native, batch, kv_caches, hidden_out)
    return _compose(decoder, batch, kv_caches, hidden_out)


def _compose(
    decoder: Decoder,
    batch: DecoderBatch,
    kv_caches: Sequence[LayerKv],
    hidden_out: Tensor | None,
) -> Tensor:
    shape, impl = decoder.shape, decoder.ops_impl
    residual = ops.embedding(batch.token_ids, decoder.embedding, impl=impl) * shape.embedding_scale
    for layer, kv in zip(decoder.layers, kv_caches, strict=True):
        residual = composed.layer_forward(
            residual, layer, kv, batch, shape=shape, cos_sin=decoder.cos_sin, impl=impl
        )
    hidden, _ = ops.rms_norm(residual, decoder.final_norm, shape.eps, impl=impl)
    if hidden_out is not None:
        hidden_out.copy_(hidden)
    return composed.product(hidden.index_select(0, batch.logit_rows), decoder.lm_head)


def _check_weights(
    shape: DecoderShape,
    layers: Sequence[PreparedLayer],
    embedding: Tensor,
    final_norm: Tensor,
    lm_head: LinearWeight,
    cos_sin: Tensor,
) -> None:
    q_size, kv_size = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if not layers or shape.heads % shape.kv_heads or shape.rotary_dim % 2:
        raise ShapeError(
            f"a decoder needs layers, heads a multiple of kv_heads and an even rotary_dim, got "
            f"{len(layers)} layers and {shape}"
        )
    for index, layer in enumerate(layers):
        wanted = {
            "qkv": (layer.qkv, q_size + 2 * kv_size, shape.hidden),
            "o": (layer.o, shape.hidden, q_size),
            "gate_up": (layer.gate_up, 2 * shape.ffn, shape.hidden),
            "down": (layer.down, shape.hidden, shape.ffn),
        }
        for name, (weight, out_features, in_features) in wanted.items():
            _check_linear(f"layer {index} {name}", weight, out_features, in_features, lm_head.impl)
        if layer.input_norm is None:
            raise ShapeError(f"layer {index} of a decoder must have an input_norm, got None")
        checks.expect_shape("input_norm", layer.input_norm, (shape.hidden,), "hidden")
        checks.expect_shape("post_norm", layer.post_norm, (shape.hidden,), "hidden")
        for norm in (layer.q_norm, layer.k_norm):
            if norm is not None:
                checks.expect_shape("q_norm and k_norm", norm, (shape.head_dim,), "head_dim")
    _check_linear("lm_head", lm_head, shape.vocab, shape.hidden, lm_head.impl)
    checks.expect_shape("embedding", embedding, (shape.vocab, shape.hidden), "vocab, hidden")
    checks.expect_rows_contiguous("embedding", embedding)
    checks.expect_shape("final_norm", final_norm, (shape.hidden,), "hidden")
    checks.expect_shape("cos_sin", cos_sin, (None, shape.rotary_dim), "max_position, rotary_dim")
    checks.expect_dtype("cos_sin", cos_sin, (torch.float32,))
    checks.expect_rows_contiguous("cos_sin", cos_sin)


def _check_linear(
    name: str, weight: LinearWeight, out_features: int, in_features: int, impl: str
) -> None:
    got = (weight.out_features, weight.in_features, weight.impl)
    if got != (out_features, in_features, impl):
        raise ShapeError(
            f"{name} must be [out, in] = [{out_features}, {in_features}] of impl {impl!r}, got "
            f"[{got[0]}, {got[1]}] of impl {got[2]!r}"
        )


def _check_batch(
    decoder: Decoder,
    batch: DecoderBatch,
    kv_caches: Sequence[LayerKv],
    hidden_out: Tensor | None,
) -> None:
    tokens, rows = batch.token_ids.shape[0], batch.seq_lens.shape[0]
    for name, tensor, size in (
        ("token_ids", batch.token_ids, tokens),
        ("positions", batch.positions, tokens),
        ("slot_mapping", batch.slot_mapping, tokens),
        ("logit_rows", batch.logit_rows, None),
    ):
        checks.expect_shape(name, tensor, (size,), "n" if size is None else "tokens")
        checks.expect_dtype(name, tensor, (torch.int64,))
        checks.expect_rows_contiguous(name, tensor)
    checks.expect_shape("block_tables", batch.block_tables, (rows, None), "rows, max_blocks")
    checks.expect_shape("cu_seqlens_q", batch.cu_seqlens_q, (rows + 1,), "rows + 1")
    checks.expect_shape("seq_lens", batch.seq_lens, (rows,), "rows")
    for name, tensor in (
        ("block_tables", batch.block_tables),
        ("cu_seqlens_q", batch.cu_seqlens_q),
        ("seq_lens", batch.seq_lens),
    ):
        checks.expect_dtype(name, tensor, (torch.int32,))
    if batch.logit_rows.shape[0] > tokens:
        raise ShapeError(f"logit_rows must name each token at most once, got {batch.logit_rows}")
    if batch.block_tables.stride(1) != 1:
        raise ShapeError("block_tables must have contiguous rows")
    if len(kv_caches) != len(decoder.layers):
        raise ShapeError(
            f"kv_caches must be one per layer, {len(decoder.layers)}, got {len(kv_caches)}"
        )
    if hidden_out is not None:
        sizes = (tokens, decoder.shape.hidden)
        checks.expect_shape("hidden_out", hidden_out, sizes, "tokens, hidden")
        checks.expect_dtype("hidden_out", hidden_out, (torch.float32,))
        checks.expect_rows_contiguous("hidden_out", hidden_out)

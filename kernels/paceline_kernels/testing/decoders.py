"""Small random decoders, their caches, and steps written as rows, for tests of whole forwards."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline_kernels import ops
from paceline_kernels.decoder import (
    Decoder,
    DecoderBatch,
    DecoderLayer,
    DecoderShape,
    prepare_decoder,
    prepare_layer,
)
from paceline_kernels.paged_kv import LayerKv

VOCAB, BLOCK_SIZE, NUM_BLOCKS = 70, 8, 24
_HIDDEN, _FFN, _LAYERS = 40, 56, 3

Row = tuple[list[int], int, list[int]]
"""Block table, position of the first new token, new tokens."""


def random_decoder(
    impl: str,
    *,
    heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 16,
    extras: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    ops_impl: str | None = None,
    linear_dtype: torch.dtype = torch.float32,
) -> Decoder:
    """A decoder of three layers, always with the same weights.

    Args:
        impl: of the products.
        heads: query heads.
        kv_heads: key heads.
        head_dim: of each head.
        extras: biases, head norms, a sliding window, a soft cap and a scaled embedding too.
        dtype: of the weights.
        ops_impl: of everything but the products; None: theirs.
        linear_dtype: of the products' inputs.
    """
    draw = _Draw(dtype)
    shape = DecoderShape(
        hidden=_HIDDEN,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=_FFN,
        vocab=VOCAB,
        rotary_dim=head_dim,
        eps=1e-5,
        softmax_scale=head_dim**-0.5,
        soft_cap=4.0 if extras else None,
        embedding_scale=3.0 if extras else 1.0,
    )
    layers = [
        prepare_layer(_layer(draw, shape, index, extras), impl=impl, dtype=linear_dtype)
        for index in range(_LAYERS)
    ]
    angles = torch.arange(64).float()[:, None] * 0.3 ** torch.arange(head_dim // 2)
    embedding = draw(VOCAB, _HIDDEN, scale=1.0)
    return prepare_decoder(
        shape,
        layers,
        embedding=embedding,
        final_norm=draw(_HIDDEN, scale=1.0),
        lm_head=ops.prepare_linear(embedding, impl=impl, dtype=linear_dtype),
        cos_sin=torch.cat((angles.cos(), angles.sin()), dim=1),
        ops_impl=ops_impl,
    )


class _Draw:
    """Random weights, one after the other."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._noise = torch.Generator().manual_seed(5)
        self._dtype = dtype

    def __call__(self, *sizes: int, scale: float | None = None) -> Tensor:
        values = torch.randn(*sizes, generator=self._noise)
        return (values * (scale or sizes[-1] ** -0.5)).to(self._dtype)


def _layer(draw: _Draw, shape: DecoderShape, index: int, extras: bool) -> DecoderLayer:
    hidden, head_dim = shape.hidden, shape.head_dim
    qkv = (shape.heads + 2 * shape.kv_heads) * head_dim
    return DecoderLayer(
        input_norm=draw(hidden, scale=1.0),
        qkv=draw(qkv, hidden),
        o=draw(hidden, shape.heads * head_dim),
        post_norm=draw(hidden, scale=1.0),
        gate_up=draw(2 * shape.ffn, hidden),
        down=draw(hidden, shape.ffn),
        qkv_bias=draw(qkv, scale=1.0) if extras else None,
        o_bias=draw(hidden, scale=1.0) if extras else None,
        q_norm=draw(head_dim, scale=1.0) if extras else None,
        k_norm=draw(head_dim, scale=1.0) if extras else None,
        sliding_window=5 if extras and index % 2 else None,
    )


def caches_of(model: Decoder, dtype: torch.dtype = torch.float32) -> list[LayerKv]:
    """Empty caches of NUM_BLOCKS blocks; those of FP8 lack their scales."""
    sizes = (NUM_BLOCKS, BLOCK_SIZE, model.shape.kv_heads, model.shape.head_dim)
    return [LayerKv(*ops.new_kv_cache(*sizes, dtype, impl=model.ops_impl)) for _ in model.layers]


def decoder_batch(
    rows: Sequence[Row], *, all_logits: bool = False, block_size: int = BLOCK_SIZE
) -> DecoderBatch:
    """A step of these rows, with the logits of each row's last token, or of all tokens."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    bounds = [0]
    for table, start, tokens in rows:
        at = range(start, start + len(tokens))
        ids += tokens
        positions += at
        slots += [table[p // block_size] * block_size + p % block_size for p in at]
        bounds.append(len(ids))
    width = max(len(table) for table, _, _ in rows)
    tables = [table + [0] * (width - len(table)) for table, _, _ in rows]
    ends = [end - 1 for end in bounds[1:]]
    return DecoderBatch(
        token_ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slots),
        block_tables=torch.tensor(tables, dtype=torch.int32),
        cu_seqlens_q=torch.tensor(bounds, dtype=torch.int32),
        seq_lens=torch.tensor([at + len(new) for _, at, new in rows], dtype=torch.int32),
        logit_rows=torch.tensor(list(range(len(ids))) if all_logits else ends),
    )

"""The parts of a decoder: rotary table, attention block, MLP block. All on flat token batches."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.model.config import ModelConfig, RopeConfig
from paceline_engine.model.weights import LayerWeights
from paceline_kernels import ops


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """All new tokens of all rows, end to end.

    Attributes:
        token_ids: [tokens] int64.
        positions: [tokens] int64, place of each token in its request.
        slot_mapping: [tokens] int64, where its keys and values go: block * block_size + offset.
        block_tables: [rows, max_blocks] int32.
        cu_seqlens_q: [rows + 1] int32, row r has the tokens [cu[r], cu[r + 1]).
        seq_lens: [rows] int32, context of a row, its new tokens included.
        logits_rows: [n] int64, tokens whose next-token logits are wanted.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    logits_rows: Tensor


def rotary_table(rope: RopeConfig, head_dim: int, num_positions: int) -> Tensor:
    """Cosines and sines of every position: [num_positions, head_dim] float32, halves side by side.

    Source: RoFormer, arXiv:2104.09864; scaling of Llama 3.1 as published with its checkpoints.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.llama3 is not None:
        scaling = rope.llama3
        wavelengths = 2 * math.pi / frequencies
        old = scaling.original_max_position_embeddings
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        share_kept = ((old / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
        frequencies = (1 - share_kept) * frequencies / scaling.factor + share_kept * frequencies
    frequencies = frequencies / rope.linear_factor
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def attention(
    x: Tensor,
    layer: LayerWeights,
    config: ModelConfig,
    sliding_window: int | None,
    batch: ForwardBatch,
    kv: tuple[Tensor, Tensor],
    cos_sin: Tensor,
) -> Tensor:
    """Project, rotate, write all rows' keys and values, then attend over the cache.

    Args:
        x: [tokens, hidden], normed.
        layer: weights of this layer.
        config: sizes of the model.
        sliding_window: keys that a query sees, its own included; None: all.
        batch: where the tokens stand.
        cos_sin: [positions, head_dim], of `rotary_table`.
        kv: this layer's keys and values, [num_blocks, block_size, kv_heads, head_dim] each;
            written at `batch.slot_mapping`.

    Returns:
        [tokens, hidden]
    """
    tokens = x.shape[0]
    qkv = ops.linear(x, layer.qkv)
    sizes = [config.q_size, config.kv_size, config.kv_size]
    q, k, v = (part.view(tokens, -1, config.head_dim) for part in torch.split(qkv, sizes, dim=-1))
    if layer.q_norm is not None and layer.k_norm is not None:
        q = _head_norm(q, layer.q_norm, config.rms_norm_eps)
        k = _head_norm(k, layer.k_norm, config.rms_norm_eps)
    ops.rotary_(q, k, batch.positions, cos_sin)
    ops.write_kv(k, v, *kv, batch.slot_mapping)
    mixed = ops.paged_attention(
        q,
        *kv,
        batch.block_tables,
        batch.cu_seqlens_q,
        batch.seq_lens,
        softmax_scale=config.head_dim**-0.5,
        sliding_window=sliding_window,
    )
    return ops.linear(mixed, layer.o)


def mlp(x: Tensor, layer: LayerWeights) -> Tensor:
    """Gated MLP: down(silu(gate(x)) * up(x)), [tokens, hidden] to the same."""
    return ops.linear(ops.silu_and_mul(ops.linear(x, layer.gate_up)), layer.down)


def _head_norm(heads: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over each head: [tokens, heads, head_dim], a copy."""
    tokens, num_heads, head_dim = heads.shape
    flat = heads.reshape(tokens * num_heads, head_dim)
    return ops.rms_norm(flat, weight, eps)[0].view(tokens, num_heads, head_dim)

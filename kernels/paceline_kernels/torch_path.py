"""The faster torch path: the reference's results from torch's own kernels.

It runs wherever torch does. It is the named path of a machine without a compiler.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor

from paceline_kernels import reference


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As reference.rms_norm; the norm's weight is cast to x's format."""
    total = x if residual is None else x + residual
    return F.rms_norm(total, (x.shape[-1],), weight.to(x.dtype), eps), total


def rotary_(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """As reference.rotary_, with the table's rows gathered once for both tensors."""
    half = cos_sin.shape[1] // 2
    rows = cos_sin.index_select(0, positions).unsqueeze(1)
    cos, sin = rows[..., :half], rows[..., half:]
    for tensor in (q, k):
        first, second = tensor[..., :half], tensor[..., half : 2 * half]
        rotated = first * cos - second * sin
        second.copy_(second * cos + first * sin)
        first.copy_(rotated)


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
    """As reference.write_kv, in one indexed write per cache."""
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    block_size = k_cache.shape[1]
    blocks = torch.div(slots, block_size, rounding_mode="floor")
    at = (blocks, slots - blocks * block_size)
    k_cache[at] = reference.quantize(k[written], k_cache.dtype, k_scale)
    v_cache[at] = reference.quantize(v[written], v_cache.dtype, v_scale)


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
) -> Tensor:
    """As reference.paged_attention: gather and scaled_dot_product_attention per row.

    A loop over rows beats padded gathers 2-5 times on a CPU. Soft-capped scores have no torch
    kernel and take the reference's way.
    """
    if soft_cap is not None:
        return reference.paged_attention(
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
    tokens, heads, head_dim = q.shape
    out = q.new_zeros(tokens, heads, head_dim)
    bounds = cu_seqlens_q.tolist()
    for row, seq_len in enumerate(seq_lens.tolist()):
        start, end = bounds[row], bounds[row + 1]
        keys = _read(k_cache, block_tables[row], seq_len, k_scale, q.dtype)
        values = _read(v_cache, block_tables[row], seq_len, v_scale, q.dtype)
        mixed = F.scaled_dot_product_attention(
            q[start:end].transpose(0, 1).unsqueeze(0),
            keys.transpose(0, 1).unsqueeze(0),
            values.transpose(0, 1).unsqueeze(0),
            attn_mask=_visible(end - start, seq_len, sliding_window, q.device),
            scale=softmax_scale,
            enable_gqa=heads != k_cache.shape[2],
        )
        out[start:end] = mixed.squeeze(0).transpose(0, 1)
    return out.flatten(1)


def _read(
    cache: Tensor, block_table: Tensor, seq_len: int, scale: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """One request's keys or values, [seq_len, num_kv_heads, head_dim] in `dtype`."""
    stored = reference.gather_blocks(cache, block_table, seq_len)
    return (stored if scale is None else reference.dequantize(stored, scale)).to(dtype)


def _visible(
    num_queries: int, seq_len: int, sliding_window: int | None, device: torch.device
) -> Tensor | None:
    """[num_queries, seq_len] bool, True where a key is seen; None when all are."""
    if num_queries == 1 and (sliding_window is None or sliding_window >= seq_len):
        return None
    query_at = torch.arange(seq_len - num_queries, seq_len, device=device).unsqueeze(1)
    key_at = torch.arange(seq_len, device=device).unsqueeze(0)
    visible = key_at <= query_at
    if sliding_window is not None:
        visible &= key_at > query_at - sliding_window
    return visible


def silu_and_mul(x: Tensor) -> Tensor:
    """As reference.silu_and_mul."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As reference.linear; weight and bias must be in x's format."""
    return F.linear(x, weight, bias)


def embedding(token_ids: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """As reference.embedding."""
    return F.embedding(token_ids, weight).to(dtype)

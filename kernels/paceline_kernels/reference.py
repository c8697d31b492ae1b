"""The reference: eager torch, one obvious way; it defines the result of every operation.

Arithmetic is done in float32, or in float64 when an input is float64 (the tests take their
rounding bounds from that), and rounded once to the output's format at the end.
"""

import torch
from torch import Tensor


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Add the residual, then scale each row to unit mean square and by `weight`.

    The sum is rounded to x's format (it is what the next layer reads) and the norm is taken of the
    rounded sum.

    Source: RMSNorm, arXiv:1910.07467.
    """
    total = x if residual is None else (_wide(x) + _wide(residual)).to(x.dtype)
    wide = _wide(total)
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * _wide(weight)).to(x.dtype), total


def rotary_(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Rotate the first `cos_sin.shape[1]` values of every head in place, halves paired.

    Source: RoFormer, arXiv:2104.09864, in the half-split form of GPT-NeoX.
    """
    rotary_dim = cos_sin.shape[1]
    cos, sin = _wide(cos_sin)[positions].unsqueeze(1).chunk(2, dim=-1)
    for tensor in (q, k):
        first, second = _wide(tensor[..., :rotary_dim]).chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        tensor[..., :rotary_dim] = rotated.to(tensor.dtype)


def quantize(x: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """Round keys or values to the cache's format, divided by their head's scale for FP8.

    The quotient is float32; it saturates at the format's largest number, which float8_e4m3fn
    needs: it has no infinity.

    Args:
        x: [tokens, num_kv_heads, head_dim].
        dtype: of the cache.
        scale: [num_kv_heads] float32, or None: x is only rounded.
    """
    if scale is None:
        return x.to(dtype)
    largest = torch.finfo(dtype).max
    return (x.float() / scale.unsqueeze(1)).clamp(-largest, largest).to(dtype)


def dequantize(stored: Tensor, scale: Tensor | None) -> Tensor:
    """Undo `quantize`: [tokens, num_kv_heads, head_dim] as float32 (float64 stays)."""
    return _wide(stored) if scale is None else _wide(stored) * scale.unsqueeze(1)


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
    """Write each token's keys and values at its slot (block * block_size + offset); -1: nowhere."""
    block_size = k_cache.shape[1]
    stored_k = quantize(k, k_cache.dtype, k_scale)
    stored_v = quantize(v, v_cache.dtype, v_scale)
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, block_size)
            k_cache[block, offset] = stored_k[token]
            v_cache[block, offset] = stored_v[token]


def gather_blocks(cache: Tensor, block_table: Tensor, num_tokens: int) -> Tensor:
    """Copy one request's keys or values out of the paged cache.

    Args:
        cache: [num_blocks, block_size, num_kv_heads, head_dim].
        block_table: [max_blocks] int32; entries behind the last used block are not read.
        num_tokens: how many tokens the request has in the cache.

    Returns:
        [num_tokens, num_kv_heads, head_dim], a copy.

    Source: PagedAttention, arXiv:2309.06180, section 4.1.
    """
    num_blocks = -(-num_tokens // cache.shape[1])
    return cache[block_table[:num_blocks].long()].flatten(0, 1)[:num_tokens]


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
    """Attention of each row's new tokens over its whole context, new tokens included.

    A row's queries are its last tokens: query i of n has position `seq_len - n + i` and sees the
    positions up to its own, with a sliding window only the last `sliding_window` of them.

    Returns:
        [tokens, heads * head_dim]; tokens behind `cu_seqlens_q[-1]` are zero.
    """
    tokens, heads, head_dim = q.shape
    group = heads // k_cache.shape[2]
    out = torch.zeros(tokens, heads * head_dim, dtype=q.dtype, device=q.device)
    for row, seq_len in enumerate(seq_lens.tolist()):
        start, end = int(cu_seqlens_q[row]), int(cu_seqlens_q[row + 1])
        keys = dequantize(gather_blocks(k_cache, block_tables[row], seq_len), k_scale)
        values = dequantize(gather_blocks(v_cache, block_tables[row], seq_len), v_scale)
        keys = keys.repeat_interleave(group, dim=1)
        values = values.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", _wide(q[start:end]), keys) * softmax_scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        query_at = torch.arange(seq_len - (end - start), seq_len, device=q.device).unsqueeze(1)
        key_at = torch.arange(seq_len, device=q.device).unsqueeze(0)
        hidden = key_at > query_at
        if sliding_window is not None:
            hidden |= key_at <= query_at - sliding_window
        probs = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        mixed = torch.einsum("hqk,khd->qhd", probs, values)
        out[start:end] = mixed.flatten(1).to(q.dtype)
    return out


def silu_and_mul(x: Tensor) -> Tensor:
    """Multiply silu of the first half by the second half: [tokens, 2 * f] -> [tokens, f]."""
    gate, up = _wide(x).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(x.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply x [tokens, in] by weight [out, in] transposed, plus bias [out]."""
    if torch.float64 in {x.dtype, weight.dtype}:
        product = x.double() @ weight.double().T
    else:
        product = x.float() @ weight.float().T
    return (product if bias is None else product + bias.to(product.dtype)).to(x.dtype)


def embedding(token_ids: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of weight [vocab, hidden] for token_ids [tokens], in `dtype`."""
    return weight[token_ids.long()].to(dtype)

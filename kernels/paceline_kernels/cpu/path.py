"""The operations on our C++ kernels. Activations are float32; arguments were checked by ops."""

import ctypes

import torch
from torch import Tensor

from paceline_kernels import checks
from paceline_kernels.cpu import library
from paceline_kernels.errors import DTypeError, ShapeError
from paceline_kernels.kv_memory import lazy_zeros

_FLOAT = (torch.float32,)


def _expect_dense(name: str, tensor: Tensor) -> None:
    checks.expect_dtype(name, tensor, _FLOAT)
    checks.expect_rows_contiguous(name, tensor)


def _expect_heads(name: str, tensor: Tensor) -> None:
    """[tokens, heads, head_dim] float32 whose tokens may lie apart (a slice of q | k | v)."""
    checks.expect_dtype(name, tensor, _FLOAT)
    if tensor.shape[0] and tensor.stride()[1:] != (tensor.shape[2], 1):
        raise ShapeError(
            f"{name} must have contiguous heads for impl 'cpu', got sizes {list(tensor.shape)} "
            f"with strides {list(tensor.stride())}"
        )


def _kv_format(dtype: torch.dtype) -> int:
    if dtype not in library.KV_FORMATS:
        known = " or ".join(str(known).removeprefix("torch.") for known in library.KV_FORMATS)
        raise DTypeError(f"the KV cache must be {known} for impl 'cpu', got {dtype}")
    return library.KV_FORMATS[dtype]


def new_kv_cache(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Keys with neighbouring tokens side by side, values with neighbouring dimensions.

    Returns:
        Both as [num_blocks, block_size, num_kv_heads, head_dim], views of other orders in memory.

    Raises:
        DTypeError: a format that the C++ does not read.
        ShapeError: block_size or head_dim is no multiple of 8.
    """
    _kv_format(dtype)
    if block_size % 8 or head_dim % 8:
        raise ShapeError(
            f"block_size and head_dim must be multiples of 8 for impl 'cpu', got {block_size} and "
            f"{head_dim}"
        )
    k = lazy_zeros((num_blocks, num_kv_heads, head_dim, block_size), dtype)
    v = lazy_zeros((num_blocks, num_kv_heads, block_size, head_dim), dtype)
    rt = library.runtime()
    for cache in (k, v):
        # Blocks are read in any order: with small pages nearly every one is an address miss.
        rt.lib.paceline_advise_huge(cache.data_ptr(), cache.numel() * cache.element_size())
    return k.permute(0, 3, 1, 2), v.permute(0, 2, 1, 3)


def kv_cache_struct(
    k_cache: Tensor, v_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> library.KvCache:
    """Describe one layer's caches to the C++ side; the tensors must outlive the structure.

    Raises:
        ShapeError: they are not laid out as new_kv_cache does.
        DTypeError: unknown number format.
    """
    _, block_size, kv_heads, head_dim = k_cache.shape
    per_head = head_dim * block_size
    wanted_k = (kv_heads * per_head, 1, per_head, block_size)
    wanted_v = (kv_heads * per_head, head_dim, per_head, 1)
    # A dimension of size 1 has no meaningful stride.
    for name, cache, wanted in (("k_cache", k_cache, wanted_k), ("v_cache", v_cache, wanted_v)):
        fits = all(
            size == 1 or stride == want
            for size, stride, want in zip(cache.shape, cache.stride(), wanted, strict=True)
        )
        if not fits or block_size % 8 or head_dim % 8:
            raise ShapeError(
                f"{name} must come from new_kv_cache(impl='cpu'), strides {list(wanted)}, got "
                f"{list(cache.stride())} for sizes {list(cache.shape)}"
            )
    return library.KvCache(
        k=k_cache.data_ptr(),
        v=v_cache.data_ptr(),
        k_scale=None if k_scale is None else k_scale.data_ptr(),
        v_scale=None if v_scale is None else v_scale.data_ptr(),
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        format=_kv_format(k_cache.dtype),
    )


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See ops.rms_norm."""
    _expect_dense("x", x)
    weight = weight.float().contiguous()
    out = torch.empty_like(x)
    total = x
    if residual is not None:
        _expect_dense("residual", residual)
        total = torch.empty_like(x)
    rt = library.runtime()
    rt.lib.paceline_rms_norm(
        rt.context,
        x.data_ptr(),
        None if residual is None else residual.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        None if residual is None else total.data_ptr(),
        x.shape[0],
        x.shape[1],
        eps,
    )
    return out, total


def rotary_(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """See ops.rotary_."""
    _expect_heads("q", q)
    _expect_heads("k", k)
    _expect_dense("cos_sin", cos_sin)
    positions = positions.contiguous()
    rt = library.runtime()
    rt.lib.paceline_rotary(
        rt.context,
        q.data_ptr(),
        k.data_ptr(),
        q.stride(0),
        k.stride(0),
        positions.data_ptr(),
        cos_sin.data_ptr(),
        q.shape[0],
        q.shape[1],
        k.shape[1],
        q.shape[2],
        cos_sin.shape[1],
    )


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
    cache = kv_cache_struct(k_cache, v_cache, k_scale, v_scale)
    slots = slot_mapping.contiguous()
    rt = library.runtime()
    rt.lib.paceline_write_kv(
        rt.context,
        ctypes.byref(cache),
        k.data_ptr(),
        v.data_ptr(),
        k.stride(0),
        v.stride(0),
        slots.data_ptr(),
        k.shape[0],
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
) -> Tensor:
    """See ops.paged_attention."""
    _expect_heads("q", q)
    cache = kv_cache_struct(k_cache, v_cache, k_scale, v_scale)
    tokens, heads, head_dim = q.shape
    out = torch.empty(tokens, heads * head_dim)
    out[int(cu_seqlens_q[-1]) :] = 0
    if block_tables.stride(-1) != 1:
        block_tables = block_tables.contiguous()
    cu_seqlens_q, seq_lens = cu_seqlens_q.contiguous(), seq_lens.contiguous()
    args = library.AttentionArgs(
        q=q.data_ptr(),
        out=out.data_ptr(),
        k_cache=cache.k,
        v_cache=cache.v,
        k_scale=cache.k_scale,
        v_scale=cache.v_scale,
        block_tables=block_tables.data_ptr(),
        cu_seqlens_q=cu_seqlens_q.data_ptr(),
        seq_lens=seq_lens.data_ptr(),
        q_stride=q.stride(0),
        out_stride=heads * head_dim,
        table_stride=block_tables.stride(0),
        rows=seq_lens.shape[0],
        heads=heads,
        kv_heads=cache.kv_heads,
        head_dim=head_dim,
        block_size=cache.block_size,
        format=cache.format,
        window=sliding_window or 0,
        scale=softmax_scale,
        cap=soft_cap or 0.0,
    )
    rt = library.runtime()
    rt.lib.paceline_attention(rt.context, ctypes.byref(args))
    return out


def silu_and_mul(x: Tensor) -> Tensor:
    """See ops.silu_and_mul."""
    _expect_dense("x", x)
    out = torch.empty(x.shape[0], x.shape[1] // 2)
    rt = library.runtime()
    rt.lib.paceline_silu_mul(rt.context, x.data_ptr(), out.data_ptr(), *out.shape)
    return out


def embedding(token_ids: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """See ops.embedding."""
    checks.expect_rows_contiguous("weight", weight)
    out = torch.empty(token_ids.shape[0], weight.shape[1])
    ids = token_ids.long().contiguous()
    rt = library.runtime()
    rt.lib.paceline_embedding(
        rt.context,
        weight.data_ptr(),
        library.format_of("weight", weight.dtype),
        ids.data_ptr(),
        out.data_ptr(),
        *out.shape,
    )
    return out.to(dtype)

"""Paged attention for mixed batches: prefill chunks and decodes in one call, or split for decodes.

A program owns `block_m // group` queries of one row, with all heads that share one key head: their
keys and values are read once for the group. Programs find their row by a search in `cu_seqlens_q`,
so that nothing about the batch needs to be known on the host. With splits, a program sees one part
of the context and leaves partial sums that `splits.py` adds up.

Source: FlashAttention-2, arXiv:2307.08691 (online softmax over tiles); Flash-Decoding (splits);
PagedAttention, arXiv:2309.06180.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.fused import runtime
from paceline_kernels.fused.configs import (
    AttentionConfig,
    attention_configs,
    power_of_two,
    split_count,
)
from paceline_kernels.fused.kv_write import cache_strides
from paceline_kernels.fused.numbers import narrow
from paceline_kernels.fused.splits import add_splits_launch
from paceline_kernels.fused.tiles import attend_tiles, row_of_block


# Counts that change from step to step are not compiled in, whatever their value.
@triton.jit(do_not_specialize=["num_tokens", "num_rows", "window"])
def attention_kernel(
    q, k_cache, v_cache, out, partial_top, partial_total,
    block_tables, cu_seqlens_q, seq_lens, k_scale, v_scale,
    num_tokens, num_rows, softmax_scale, soft_cap, window,
    q_stride_token, q_stride_head, table_stride,
    k_stride_block, k_stride_token, k_stride_head,
    v_stride_block, v_stride_token, v_stride_head,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SCALES: tl.constexpr,
    SKIP_MASKS: tl.constexpr,
    KEY_DTYPE: tl.constexpr, VALUE_DTYPE: tl.constexpr, FP8_BYTES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of queries x key heads x splits.

    out: [tokens, heads, HEAD_DIM]; with SPLITS > 1 float32 [tokens, heads, SPLITS, HEAD_DIM], not
    divided by the totals, which lie beside the largest scores (in units of ln 2) in partial_total
    and partial_top, [tokens, heads, SPLITS] each.
    """
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    # The last blocks of a chunk have most keys: they go first, and short ones fill the gaps.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = row_of_block(cu_seqlens_q, block, num_rows, QUERIES)
    start = tl.load(cu_seqlens_q + row)
    is_row = row < num_rows
    end = tl.load(cu_seqlens_q + row + 1, mask=is_row, other=num_tokens)
    first = (block - (start // QUERIES + row)) * QUERIES
    if first >= end - start:
        return
    seq_len = tl.load(seq_lens + row, mask=is_row, other=0)
    context = seq_len - (end - start)  # position of the row's first query

    lanes = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, DIM)
    in_block = lanes // GROUP
    is_query = (in_block < QUERIES) & (first + in_block < end - start)
    query_at = context + first + in_block
    tokens = (start + first + in_block).to(tl.int64)
    heads = kv_head * GROUP + lanes % GROUP
    lane_mask = is_query[:, None] & (dims < HEAD_DIM)[None, :]
    q_at = tokens[:, None] * q_stride_token + heads[:, None] * q_stride_head + dims[None, :]
    queries = tl.load(q + q_at, mask=lane_mask, other=0).to(KEY_DTYPE)

    # Keys that any query of the block sees.
    last_at = tl.minimum(context + first + QUERIES, seq_len) - 1
    num_keys = tl.where(is_row, last_at + 1, 0)
    first_tile = 0
    if HAS_WINDOW:
        first_tile = tl.maximum(context + first - window + 1, 0) // TILE
    end_tile = tl.cdiv(num_keys, TILE)
    if SPLITS > 1:
        per_split = tl.cdiv(end_tile - first_tile, SPLITS)
        first_tile = tl.minimum(first_tile + split * per_split, end_tile)
        end_tile = tl.minimum(first_tile + per_split, end_tile)
    # Tiles that every query of the block sees whole come first, and need no masks.
    whole_to = tl.minimum(tl.maximum((context + first + 1) // TILE, first_tile), end_tile)

    score_scale = softmax_scale * 1.4426950408889634
    if HAS_SCALES:
        score_scale = score_scale * tl.load(k_scale + kv_head)
    if FP8_BYTES:
        score_scale = score_scale * 256.0
    soft_cap = soft_cap * 1.4426950408889634
    k_base = k_cache + kv_head.to(tl.int64) * k_stride_head
    v_base = v_cache + kv_head.to(tl.int64) * v_stride_head
    table = block_tables + row.to(tl.int64) * table_stride
    acc = tl.zeros([BLOCK_M, DIM], dtype=tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    if SKIP_MASKS:
        acc, top, total = attend_tiles(
            acc, top, total, queries, k_base, v_base, table, query_at,
            first_tile, whole_to, num_keys, score_scale, soft_cap, window,
            k_stride_block, k_stride_token, v_stride_block, v_stride_token,
            HEAD_DIM, DIM, BLOCK_SIZE, TILE, False, False, HAS_CAP,
            KEY_DTYPE, VALUE_DTYPE, FP8_BYTES, PRECISION,
        )  # fmt: skip
        first_tile = whole_to
    acc, top, total = attend_tiles(
        acc, top, total, queries, k_base, v_base, table, query_at,
        first_tile, end_tile, num_keys, score_scale, soft_cap, window,
        k_stride_block, k_stride_token, v_stride_block, v_stride_token,
        HEAD_DIM, DIM, BLOCK_SIZE, TILE, True, HAS_WINDOW, HAS_CAP,
        KEY_DTYPE, VALUE_DTYPE, FP8_BYTES, PRECISION,
    )  # fmt: skip

    value_scale = 1.0
    if HAS_SCALES:
        value_scale = tl.load(v_scale + kv_head)
    if FP8_BYTES:
        value_scale = value_scale * 256.0
    num_heads = tl.num_programs(1) * GROUP
    out_row = tokens * num_heads + heads
    if SPLITS > 1:
        out_row = out_row * SPLITS + split
        tl.store(partial_top + out_row, top, mask=is_query)
        tl.store(partial_total + out_row, total, mask=is_query)
        acc = acc * value_scale
    else:
        acc = acc * (value_scale / tl.where(total == 0.0, 1.0, total))[:, None]
    result = narrow(acc, out.dtype.element_ty)
    tl.store(out + out_row[:, None] * HEAD_DIM + dims[None, :], result, mask=lane_mask)


MAX_DECODE_QUERIES = 8
"""A token and its drafts; rows with more queries are chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """The arguments of ops.paged_attention, for which see there.

    Attributes:
        is_fp8_native: the device converts e4m3 itself; else an FP8 cache is read as bytes.
        precision: of float32 products, see tl.dot.
    """

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    softmax_scale: float
    sliding_window: int | None
    soft_cap: float | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    is_fp8_native: bool
    precision: str

    @property
    def group(self) -> int:
        """Heads that share a key head."""
        return self.q.shape[1] // self.k_cache.shape[2]

    @property
    def is_fp8(self) -> bool:
        """Whether the cache is quantised."""
        return self.k_cache.dtype == torch.float8_e4m3fn

    @property
    def decode_queries(self) -> int | None:
        """Queries of every row if they are few and equally many, as in a step of decodes.

        A guess from the counts that the host has; a wrong one costs time alone.
        """
        queries, left = divmod(self.q.shape[0], max(1, self.seq_lens.shape[0]))
        return queries if left == 0 and 1 <= queries <= MAX_DECODE_QUERIES else None

    def operand_dtypes(self) -> tuple[tl.dtype, tl.dtype]:
        """Formats in which keys meet queries, and values meet weights.

        Queries and a cache of one 16-bit format are multiplied as they are. FP8 values are exact in
        float16, whose weights are finer than bfloat16's. Everything else meets in float32.
        """
        own = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(self.q.dtype)
        if own is None or not (self.is_fp8 or self.k_cache.dtype == self.q.dtype):
            return tl.float32, tl.float32
        return own, tl.float16 if self.is_fp8 else own

    def configs(self) -> tuple[AttentionConfig, ...]:
        """What this call may be tuned over."""
        element_bytes = self.operand_dtypes()[0].primitive_bitwidth // 8
        dim = power_of_two(self.q.shape[2])
        return attention_configs(dim, self.group, element_bytes, self.decode_queries)

    def key(self) -> tuple[object, ...]:
        """What the best configuration depends on."""
        return (
            "attention",
            self.q.dtype,
            self.k_cache.dtype,
            self.q.shape[1:],
            self.k_cache.shape[1:],
            self.decode_queries,
            self.sliding_window is not None,
            self.soft_cap is not None,
        )

    def programs(self, config: AttentionConfig) -> int:
        """Programs of an unsplit call."""
        tokens, rows = self.q.shape[0], self.seq_lens.shape[0]
        return (tokens // (config.block_m // self.group) + rows + 1) * self.k_cache.shape[2]


def attention_launch(
    call: AttentionCall,
    config: AttentionConfig,
    num_splits: int,
    out: Tensor,
    sums: tuple[Tensor, Tensor] | None,
) -> runtime.Launch:
    """Describe the attention kernel's call; out and sums as its docstring says."""
    tokens, _, head_dim = call.q.shape
    block_size, kv_heads = call.k_cache.shape[1:3]
    fp8_bytes = call.is_fp8 and not call.is_fp8_native
    caches = [call.k_cache, call.v_cache]
    if fp8_bytes:
        caches = [cache.view(torch.uint8) for cache in caches]
    key_dtype, value_dtype = call.operand_dtypes()
    return runtime.Launch(
        kernel=attention_kernel,
        grid=(call.programs(config) // kv_heads, kv_heads, num_splits),
        arguments={
            "q": call.q,
            "k_cache": caches[0],
            "v_cache": caches[1],
            "out": out,
            "partial_top": None if sums is None else sums[0],
            "partial_total": None if sums is None else sums[1],
            "block_tables": call.block_tables,
            "cu_seqlens_q": call.cu_seqlens_q,
            "seq_lens": call.seq_lens,
            "k_scale": call.k_scale,
            "v_scale": call.v_scale,
            "num_tokens": tokens,
            "num_rows": call.seq_lens.shape[0],
            "softmax_scale": call.softmax_scale,
            "soft_cap": call.soft_cap or 0.0,
            "window": call.sliding_window or 0,
            "q_stride_token": call.q.stride(0),
            "q_stride_head": call.q.stride(1),
            "table_stride": call.block_tables.stride(0),
            **cache_strides(*caches),
        },
        constants={
            "HEAD_DIM": head_dim,
            "DIM": power_of_two(head_dim),
            "GROUP": call.group,
            "BLOCK_SIZE": block_size,
            "BLOCK_M": config.block_m,
            "TILE": config.tile,
            "SPLITS": num_splits,
            "HAS_WINDOW": call.sliding_window is not None,
            "HAS_CAP": call.soft_cap is not None,
            "HAS_SCALES": call.k_scale is not None,
            # Masks cost chunks, which compute; decodes and windowed rows wait for memory.
            "SKIP_MASKS": call.sliding_window is None and call.decode_queries is None,
            "KEY_DTYPE": key_dtype,
            "VALUE_DTYPE": value_dtype,
            "FP8_BYTES": fp8_bytes,
            "PRECISION": call.precision,
        },
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


def attend(call: AttentionCall, *, num_splits: int | None = None) -> Tensor:
    """Run the call: [tokens, heads * head_dim] in q's format.

    Args:
        call: what to do.
        num_splits: parts of every context; None: as many as keep a step of decodes busy.
    """
    tokens, heads, head_dim = call.q.shape
    out = call.q.new_empty(tokens, heads * head_dim)
    config = runtime.pick(
        call.configs(), call.key(), lambda one: attention_launch(call, one, 1, out, None)
    )
    if num_splits is None:
        num_splits = 1
        if call.decode_queries is not None:
            capacity = call.block_tables.shape[1] * call.k_cache.shape[1]
            processors = runtime.num_processors(call.q.device)
            num_splits = split_count(call.programs(config), capacity, processors, config.tile)
    if num_splits == 1:
        runtime.run(attention_launch(call, config, 1, out, None))
        return out
    partial = torch.empty(tokens, heads, num_splits, head_dim, device=out.device)
    sums = (partial.new_empty(tokens, heads, num_splits), partial.new_empty(partial.shape[:3]))
    runtime.run(attention_launch(call, config, num_splits, partial, sums))
    runtime.run(add_splits_launch(partial, sums, out))
    return out

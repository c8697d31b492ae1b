"""What attention programs do: find their row, and run the online softmax over tiles of keys."""

import triton
import triton.language as tl

from paceline_kernels.fused.numbers import e4m3_over_256, narrow, product


@triton.jit
def row_of_block(cu_seqlens_q, block, num_rows, QUERIES: tl.constexpr):
    """The row that owns a block of queries; num_rows for the tokens behind the last row.

    Row r owns blocks from cu_seqlens_q[r] // QUERIES + r on: at least as many as it needs.
    """
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(cu_seqlens_q + middle) // QUERIES + middle <= block:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def load_operand(pointers, mask, DTYPE: tl.constexpr, FP8_BYTES: tl.constexpr):
    """A tile of keys or values as operand of a product; FP8 bytes come divided by 256."""
    if FP8_BYTES:
        return e4m3_over_256(tl.load(pointers, mask=mask, other=0)).to(DTYPE)
    else:  # noqa: RET505  (both are compiled without it)
        return tl.load(pointers, mask=mask, other=0.0).to(DTYPE)


@triton.jit
def attend_tiles(
    state_acc, state_top, state_total,
    queries, k_base, v_base, table, query_at,
    first_tile, end_tile, num_keys, score_scale, soft_cap, window,
    k_stride_block, k_stride_token, v_stride_block, v_stride_token,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    MASKED: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
    KEY_DTYPE: tl.constexpr, VALUE_DTYPE: tl.constexpr, FP8_BYTES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over tiles [first_tile, end_tile); MASKED: some keys are not seen by all."""
    dims = tl.arange(0, DIM)
    for index in range(first_tile, end_tile):
        keys_at = index * TILE + tl.arange(0, TILE)
        # Without MASKED every key of the tile lies inside the context of every query.
        is_key = keys_at < num_keys
        if MASKED:
            blocks = tl.load(table + keys_at // BLOCK_SIZE, mask=is_key, other=0)
        else:
            blocks = tl.load(table + keys_at // BLOCK_SIZE)
        blocks = blocks.to(tl.int64)
        within = keys_at % BLOCK_SIZE
        k_at = blocks * k_stride_block + within * k_stride_token
        v_at = blocks * v_stride_block + within * v_stride_token
        k_mask = (dims < HEAD_DIM)[:, None]
        v_mask = (dims < HEAD_DIM)[None, :]
        if MASKED:
            k_mask = k_mask & is_key[None, :]
            v_mask = v_mask & is_key[:, None]
        keys = load_operand(k_base + k_at[None, :] + dims[:, None], k_mask, KEY_DTYPE, FP8_BYTES)
        empty = tl.zeros([queries.shape[0], TILE], dtype=tl.float32)
        scores = product(queries, keys, empty, PRECISION)
        scores = scores * score_scale
        if HAS_CAP:
            # tanh(x) = (1 - e) / (1 + e) with e = exp(-2 |x|) = exp2(-2 |x| / ln 2); scores and
            # cap are in units of ln 2 both.
            decay = tl.exp2(-2.885390081777927 * tl.abs(scores) / soft_cap)
            capped = soft_cap * (1.0 - decay) / (1.0 + decay)
            scores = tl.where(scores < 0, -capped, capped)
        if MASKED:
            seen = is_key[None, :] & (keys_at[None, :] <= query_at[:, None])
            if HAS_WINDOW:
                seen = seen & (keys_at[None, :] > query_at[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(state_top, tl.max(scores, axis=1))
        # A query that has seen nothing yet keeps -inf, from which nothing may be subtracted.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(state_top - base)
        values = load_operand(
            v_base + v_at[:, None] + dims[None, :], v_mask, VALUE_DTYPE, FP8_BYTES
        )
        state_total = state_total * shrink + tl.sum(weights, axis=1)
        state_acc = product(
            narrow(weights, VALUE_DTYPE), values, state_acc * shrink[:, None], PRECISION
        )
        state_top = new_top
    return state_acc, state_top, state_total

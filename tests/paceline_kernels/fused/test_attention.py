"""Paged attention under the interpreter, which is slow: at most 160 tokens.

It shows indices, masks and algebra with the rounding of the formats; not races, nor the rounding
of a device's own exponentials.
"""

import dataclasses

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from paceline_kernels import ops
from paceline_kernels.errors import DTypeError, ShapeError
from paceline_kernels.fused import path
from paceline_kernels.paged_kv import FP8
from paceline_kernels.testing.paged import POISON, error_bound, make_batch

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
FORMATS = [(F32, F32), (BF16, BF16), (F16, F16), (F32, BF16), (F32, FP8), (BF16, FP8), (F16, FP8)]
MIXED = [(37, 5), (1, 1), (50, 18), (20, 1)]
DECODES = [(150, 1), (3, 1), (1, 1)]


def batch_of(rows, dtype=F32, *, heads=6, kv_heads=2, head_dim=64, block_size=16, seed=0):
    batch = make_batch(
        rows,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        seed=seed,
    )
    parts = {name: getattr(batch, name).to(dtype) for name in ("q", "k", "v")}
    return dataclasses.replace(batch, **parts)


def check(batch, cache_dtype, *, window=None, soft_cap=None, num_splits=None):
    # Another's caches: the write has its own tests, and the strides of the cache are arguments.
    caches = batch.caches("torch", cache_dtype)
    exact = batch.exact(caches)
    want = batch.attend("reference", exact, window=window, soft_cap=soft_cap)
    got = path.paged_attention(
        batch.q,
        *caches,
        batch.block_tables,
        batch.cu_seqlens_q,
        batch.seq_lens,
        softmax_scale=batch.q.shape[2] ** -0.5,
        sliding_window=window,
        soft_cap=soft_cap,
        num_splits=num_splits,
        **batch.scales(cache_dtype),
    )
    assert got.dtype == batch.q.dtype
    weights_dtype = batch.q.dtype if cache_dtype in {batch.q.dtype, FP8} else F32
    if cache_dtype == FP8 and batch.q.dtype == BF16:
        weights_dtype = F16
    # After its sum a score meets the scale (itself a product of three), the cap, and its maximum.
    bound = error_bound(
        batch,
        exact,
        score_roundings=7,
        soft_cap=soft_cap or 0.0,
        weights_dtype=weights_dtype,
        out_dtype=batch.q.dtype,
    )
    assert (got.double() - want).abs().max().item() <= bound


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "cache_dtype"), FORMATS)
def test_mixed_batches_of_every_format_match_the_reference_within_its_rounding(dtype, cache_dtype):
    check(batch_of(MIXED, dtype, heads=5, kv_heads=1), cache_dtype)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_head_size_matches_the_reference(head_dim):
    check(batch_of([(33, 4), (9, 1)], heads=2, kv_heads=1, head_dim=head_dim, block_size=8), F32)


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 3, 7, 8])
def test_every_number_of_heads_to_a_key_head_matches_the_reference(group):
    check(batch_of([(40, 7), (12, 3)], BF16, heads=2 * group, block_size=32), BF16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_splits", "dtype", "window"), [(2, F32, None), (4, BF16, None), (4, F32, 20)]
)
def test_a_split_context_gives_the_result_of_a_whole_one(num_splits, dtype, window):
    check(
        batch_of(DECODES, dtype, heads=3, kv_heads=1), dtype, num_splits=num_splits, window=window
    )


@pytest.mark.slow
@pytest.mark.parametrize("num_splits", [1, 2])
def test_a_window_hides_what_left_it(num_splits):
    batch = batch_of([(70, 12), (64, 1), (5, 5)], heads=2, kv_heads=1)
    check(batch, F32, window=33, num_splits=num_splits)


@pytest.mark.slow
@pytest.mark.parametrize("soft_cap", [0.5, 30.0])
def test_scores_are_capped_softly(soft_cap):
    check(batch_of([(50, 10), (20, 1)], heads=2, kv_heads=1), F32, soft_cap=soft_cap)


@pytest.mark.slow
@settings(
    max_examples=5, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)  # shrinking: minutes
@given(data=st.data())
def test_random_batches_match_the_reference_within_its_rounding(data):
    rows = []
    for _ in range(data.draw(st.integers(1, 2))):
        length = data.draw(st.integers(1, 160))
        rows.append((length, data.draw(st.one_of(st.just(1), st.integers(1, min(length, 24))))))
    kv_heads = data.draw(st.integers(1, 2))
    dtype, cache_dtype = data.draw(st.sampled_from(FORMATS))
    batch = batch_of(
        rows,
        dtype,
        heads=kv_heads * data.draw(st.integers(1, 8)),
        kv_heads=kv_heads,
        head_dim=data.draw(st.sampled_from((64, 80, 96, 128))),
        block_size=data.draw(st.sampled_from((8, 16, 32))),
        seed=data.draw(st.integers(0, 2**20)),
    )
    check(
        batch,
        cache_dtype,
        window=data.draw(st.one_of(st.none(), st.integers(1, 200))),
        soft_cap=data.draw(st.one_of(st.none(), st.floats(1.0, 50.0))),
        num_splits=data.draw(st.sampled_from((None, 2))),
    )


@pytest.mark.slow
def test_caches_written_by_the_kernels_are_read_by_them():
    batch = batch_of([(19, 5), (9, 1)], BF16, heads=2, kv_heads=2)
    for cache_dtype in (BF16, FP8):
        own, theirs = batch.caches("triton", cache_dtype), batch.caches("torch", cache_dtype)
        assert own[0].stride() != theirs[0].stride()
        assert torch.equal(batch.attend("triton", own), batch.attend("triton", theirs))


@pytest.mark.slow
@pytest.mark.parametrize("num_splits", [1, 2])
def test_tokens_behind_the_last_row_are_zero_and_not_read(num_splits):
    batch = batch_of([(20, 3), (9, 1)], heads=2, kv_heads=1)
    caches = batch.caches("triton", F32)
    padded = torch.full((23, 2, 64), POISON)
    padded[:4] = batch.q
    arguments = (*caches, batch.block_tables, batch.cu_seqlens_q, batch.seq_lens)
    out = path.paged_attention(padded, *arguments, softmax_scale=0.125, num_splits=num_splits)
    assert out[:4].isfinite().all()
    assert torch.equal(out[4:], torch.zeros(19, 128))


def test_queries_may_be_a_slice_of_a_joint_projection():
    batch = batch_of([(12, 2)], heads=2, kv_heads=1)
    joint = torch.full((2, 5 * 64), POISON)
    joint[:, 64:192] = batch.q.flatten(1)
    sliced = dataclasses.replace(batch, q=joint[:, 64:192].view(2, 2, 64))
    caches = batch.caches("triton", F32)
    assert torch.equal(sliced.attend("triton", caches), batch.attend("triton", caches))


def test_what_the_kernels_cannot_read_is_refused():
    batch = batch_of([(12, 2)], heads=2, kv_heads=1)
    caches = batch.caches("triton", F32)
    wide = dataclasses.replace(batch, q=batch.q.double())
    with pytest.raises(DTypeError, match="q must be float32 or bfloat16 or float16"):
        wide.attend("triton", caches)
    strided = dataclasses.replace(batch, q=batch.q.repeat_interleave(2, dim=2)[..., ::2])
    with pytest.raises(ShapeError, match="dense last dimension"):
        strided.attend("triton", caches)
    theirs = ops.new_kv_cache(batch.num_blocks, 16, 1, 64, F32, impl="cpu")
    with pytest.raises(ShapeError, match="as new_kv_cache gives it"):
        batch.attend("triton", theirs)
    elsewhere = dataclasses.replace(batch, q=batch.q.to("meta"))
    with pytest.raises(DTypeError, match="q must be on a cpu device"):
        elsewhere.attend("triton", caches)

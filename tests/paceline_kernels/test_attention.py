import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_kernels import ops
from paceline_kernels.errors import DTypeError, ImplUnavailableError, ShapeError
from paceline_kernels.testing.paged import POISON, error_bound, make_batch

IMPLS = ("torch", "cpu")
CACHE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check(batch, impl, dtype, *, window=None, soft_cap=None):
    caches = batch.caches(impl, dtype)
    got = batch.attend(impl, caches, window=window, soft_cap=soft_cap)
    exact = batch.exact(caches)
    want = batch.attend("reference", exact, window=window, soft_cap=soft_cap)
    worst = (got.double() - want).abs().max().item()
    assert worst <= error_bound(batch, exact)


@st.composite
def batches(draw, max_length):
    kv_heads = draw(st.integers(1, 3))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, max_length))
        rows.append((length, draw(st.one_of(st.just(1), st.integers(1, length)))))
    return make_batch(
        rows,
        heads=kv_heads * draw(st.integers(1, 8)),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from((64, 80, 96, 128, 256))),
        block_size=draw(st.sampled_from((8, 16, 24, 32))),
        seed=draw(st.integers(0, 2**20)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("impl", IMPLS)
@settings(max_examples=40, deadline=None)
@given(
    batch=batches(max_length=160),
    dtype=st.sampled_from(CACHE_DTYPES),
    window=st.one_of(st.none(), st.integers(1, 200)),
    soft_cap=st.one_of(st.none(), st.floats(1.0, 50.0)),
)
def test_random_batches_match_the_reference_within_its_rounding(
    impl, batch, dtype, window, soft_cap
):
    check(batch, impl, dtype, window=window, soft_cap=soft_cap)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(batch=batches(max_length=4000), dtype=st.sampled_from(CACHE_DTYPES))
def test_long_contexts_match_the_reference_within_its_rounding(batch, dtype):
    # Few queries: the reference's scores of 4,000 x 4,000 x heads would not fit a small machine.
    keep = [
        (int(length), min(64, int(new)))
        for length, new in zip(batch.seq_lens, batch.cu_seqlens_q.diff(), strict=True)
    ]
    small = make_batch(
        keep,
        heads=batch.q.shape[1],
        kv_heads=batch.k.shape[1],
        head_dim=batch.q.shape[2],
        block_size=batch.block_size,
    )
    check(small, "cpu", dtype)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_split_context_gives_the_result_of_a_whole_one(num_threads):
    ops.set_cpu_threads(num_threads)
    try:
        batch = make_batch([(1500, 1)], heads=3, kv_heads=1, head_dim=64, block_size=16)
        check(batch, "cpu", torch.float32)
        check(batch, "cpu", torch.float32, window=700)
    finally:
        ops.set_cpu_threads(2)


@pytest.mark.parametrize("impl", IMPLS)
def test_a_window_over_long_chunks_hides_what_left_it(impl):
    batch = make_batch([(300, 200), (64, 1)], heads=2, kv_heads=1, head_dim=64, block_size=16)
    check(batch, impl, torch.float32, window=33)


@pytest.mark.parametrize("impl", IMPLS)
def test_tokens_behind_the_last_row_are_zero(impl):
    batch = make_batch([(20, 3)], heads=2, kv_heads=1, head_dim=64, block_size=8)
    caches = batch.caches(impl, torch.float32)
    padded = torch.full((5, 2, 64), POISON)
    padded[:3] = batch.q
    out = ops.paged_attention(
        padded,
        *caches,
        batch.block_tables,
        batch.cu_seqlens_q,
        batch.seq_lens,
        softmax_scale=0.125,
        impl=impl,
    )
    assert out.isfinite().all()
    assert torch.equal(out[3:], torch.zeros(2, 128))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", CACHE_DTYPES)
def test_written_keys_and_values_are_rounded_once_and_land_in_their_slots(impl, dtype):
    batch = make_batch([(21, 1), (5, 1)], heads=4, kv_heads=2, head_dim=80, block_size=8)
    batch.slot_mapping[3] = -1
    want = batch.caches("reference", dtype)
    got = batch.caches(impl, dtype)
    for left, right in zip(want, got, strict=True):
        assert torch.equal(left.isnan(), right.isnan())
        assert torch.equal(left.nan_to_num(), right.nan_to_num())


def attend(caches_of="cpu", **changed):
    batch = make_batch([(20, 3)], heads=4, kv_heads=2, head_dim=64, block_size=8)
    caches = batch.caches(caches_of, torch.float32)
    arguments = {
        "q": batch.q,
        "k_cache": caches[0],
        "v_cache": caches[1],
        "block_tables": batch.block_tables,
        "cu_seqlens_q": batch.cu_seqlens_q,
        "seq_lens": batch.seq_lens,
        "softmax_scale": 1.0,
        "impl": "cpu",
    }
    arguments.update(changed)
    return ops.paged_attention(**arguments)


@pytest.mark.parametrize(
    ("error", "message", "changed"),
    [
        (ShapeError, "heads must be a multiple", {"q": torch.zeros(3, 3, 64)}),
        (ShapeError, "q must be", {"q": torch.zeros(3, 64)}),
        (ShapeError, "k_cache must be", {"q": torch.zeros(3, 4, 32)}),
        (ShapeError, "new_kv_cache", {"k_cache": torch.zeros(5, 8, 2, 64)}),
        (DTypeError, "seq_lens must be int32", {"seq_lens": torch.tensor([20])}),
        (ShapeError, "seq_lens must be <=", {"seq_lens": torch.tensor([99], dtype=torch.int32)}),
        (ShapeError, "seq_lens must be >=", {"seq_lens": torch.tensor([2], dtype=torch.int32)}),
        (ShapeError, "cu_seqlens_q", {"cu_seqlens_q": torch.tensor([0, 9], dtype=torch.int32)}),
        (ShapeError, "softmax_scale", {"softmax_scale": 0.0}),
        (ShapeError, "sliding_window", {"sliding_window": 0}),
        (ShapeError, "soft_cap", {"soft_cap": -1.0}),
        (DTypeError, "q must be float32", {"q": torch.zeros(3, 4, 64, dtype=torch.bfloat16)}),
    ],
)
@pytest.mark.usefixtures("cpp_compiler")
def test_wrong_arguments_are_refused_by_name(error, message, changed):
    with pytest.raises(error, match=message):
        attend(**changed)


def test_a_name_that_is_no_implementation_is_refused():
    with pytest.raises(ImplUnavailableError, match="impl must be one of"):
        attend(caches_of="reference", impl="fastest")


def test_a_cpu_cache_of_odd_sizes_is_refused():
    with pytest.raises(ShapeError, match="multiples of 8"):
        ops.new_kv_cache(4, 12, 1, 64, torch.float32, impl="cpu")

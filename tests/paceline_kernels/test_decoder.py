import dataclasses

import pytest
import torch

from paceline_kernels import decoder, ops
from paceline_kernels.decoder import DecoderBatch, DecoderLayer, DecoderShape
from paceline_kernels.errors import DTypeError, ShapeError
from paceline_kernels.paged_kv import FP8, LayerKv

VOCAB, BLOCK_SIZE, NUM_BLOCKS = 70, 8, 24


def make(
    impl,
    *,
    heads=6,
    kv_heads=2,
    head_dim=16,
    extras=False,
    dtype=torch.bfloat16,
    ops_impl=None,
    linear_dtype=torch.float32,
):
    """A small random decoder; `extras`: biases, head norms, a window, a cap, a scaled embedding."""
    noise = torch.Generator().manual_seed(5)
    hidden, ffn = 40, 56

    def draw(*sizes, scale=None):
        values = torch.randn(*sizes, generator=noise)
        return (values * (scale or sizes[-1] ** -0.5)).to(dtype)

    shape = DecoderShape(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=VOCAB,
        rotary_dim=head_dim,
        eps=1e-5,
        softmax_scale=head_dim**-0.5,
        soft_cap=4.0 if extras else None,
        embedding_scale=3.0 if extras else 1.0,
    )
    qkv = (heads + 2 * kv_heads) * head_dim
    layers = [
        decoder.prepare_layer(
            DecoderLayer(
                input_norm=draw(hidden, scale=1.0),
                qkv=draw(qkv, hidden),
                o=draw(hidden, heads * head_dim),
                post_norm=draw(hidden, scale=1.0),
                gate_up=draw(2 * ffn, hidden),
                down=draw(hidden, ffn),
                qkv_bias=draw(qkv, scale=1.0) if extras else None,
                o_bias=draw(hidden, scale=1.0) if extras else None,
                q_norm=draw(head_dim, scale=1.0) if extras else None,
                k_norm=draw(head_dim, scale=1.0) if extras else None,
                sliding_window=5 if extras and index % 2 else None,
            ),
            impl=impl,
            dtype=linear_dtype,
        )
        for index in range(3)
    ]
    angles = torch.arange(64).float()[:, None] * 0.3 ** torch.arange(head_dim // 2)
    embedding = draw(VOCAB, hidden, scale=1.0)
    return decoder.prepare_decoder(
        shape,
        layers,
        embedding=embedding,
        final_norm=draw(hidden, scale=1.0),
        lm_head=ops.prepare_linear(embedding, impl=impl, dtype=linear_dtype),
        cos_sin=torch.cat((angles.cos(), angles.sin()), dim=1),
        ops_impl=ops_impl,
    )


def caches(model, dtype=torch.float32):
    sizes = (NUM_BLOCKS, BLOCK_SIZE, model.shape.kv_heads, model.shape.head_dim)
    return [LayerKv(*ops.new_kv_cache(*sizes, dtype, impl=model.ops_impl)) for _ in model.layers]


def make_batch(rows, *, all_logits=False):
    """Rows of (block table, start, tokens)."""
    ids, positions, slots, cu, lens = [], [], [], [0], []
    for table, start, tokens in rows:
        at = range(start, start + len(tokens))
        ids += tokens
        positions += at
        slots += [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in at]
        cu.append(cu[-1] + len(tokens))
        lens.append(start + len(tokens))
    width = max(len(table) for table, _, _ in rows)
    tables = [table + [0] * (width - len(table)) for table, _, _ in rows]
    ends = [end - 1 for end in cu[1:]]
    return DecoderBatch(
        token_ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slots),
        block_tables=torch.tensor(tables, dtype=torch.int32),
        cu_seqlens_q=torch.tensor(cu, dtype=torch.int32),
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        logit_rows=torch.tensor(list(range(len(ids))) if all_logits else ends),
    )


def fp8_caches(model):
    """With a scale of its own for each layer, head, keys and values."""
    size = torch.tensor(4.0 / 448)
    heads = torch.arange(1, model.shape.kv_heads + 1) / model.shape.kv_heads
    return [
        kv._replace(k_scale=size * heads * (1 + index), v_scale=size * (2 - heads))
        for index, kv in enumerate(caches(model, FP8))
    ]


STEPS = [
    [([3, 7, 1], 0, list(range(20))), ([2, 9], 0, [5, 6, 7])],
    [([3, 7, 1], 20, [9]), ([2, 9], 3, list(range(30, 41))), ([11], 0, [1])],
    [([11], 1, [2]), ([3, 7, 1], 21, [4, 8])],
]


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 16), (4, 4, 24), (8, 1, 8)])
def test_one_call_gives_what_the_operations_give_one_by_one(extras, heads, kv_heads, head_dim):
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "extras": extras}
    native, reference = make("cpu", **sizes), make("reference", **sizes)
    native_kv, reference_kv = caches(native), caches(reference)
    for rows in STEPS:
        batch = make_batch(rows, all_logits=True)
        hidden = torch.empty(batch.token_ids.shape[0], native.shape.hidden)
        got = decoder.decoder_forward(native, batch, native_kv, hidden_out=hidden)
        want_hidden = torch.empty_like(hidden)
        want = decoder.decoder_forward(reference, batch, reference_kv, hidden_out=want_hidden)
        # Each side is off by the rounding of some 20 operations on values of size 10 in 3 layers.
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(hidden, want_hidden, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("extras", [False, True])
def test_an_fp8_cache_differs_from_the_reference_by_turned_roundings_alone(extras):
    native, reference = make("cpu", extras=extras), make("reference", extras=extras)
    native_kv, reference_kv, full_kv = fp8_caches(native), fp8_caches(reference), caches(reference)
    for rows in STEPS:
        batch = make_batch(rows, all_logits=True)
        got = decoder.decoder_forward(native, batch, native_kv)
        want = decoder.decoder_forward(reference, batch, reference_kv)
        full = decoder.decoder_forward(reference, batch, full_kv)
        # A value near the middle of two numbers of the format may be rounded the other way, by a
        # step of 2^-3: few do, so the distance stays far below that to the full cache.
        off = (got - want).norm() / want.norm()
        assert off < 0.1 * (full - want).norm() / want.norm()
    for mine, theirs in zip(native_kv, reference_kv, strict=True):
        for cache in ("k_cache", "v_cache"):
            same = getattr(mine, cache).float() == getattr(theirs, cache).float()
            assert same.float().mean() > 0.99


def test_an_fp8_cache_gives_a_chunked_prompt_the_numbers_of_a_whole_one():
    model = make("cpu")
    tokens = [int(token) for token in torch.arange(30) * 7 % VOCAB]
    table = [4, 2, 8, 6]
    whole = decoder.decoder_forward(
        model, make_batch([(table, 0, tokens)], all_logits=True), fp8_caches(model)
    )
    kv, parts = fp8_caches(model), []
    for start, end in ((0, 11), (11, 12), (12, 29), (29, 30)):
        batch = make_batch([(table, start, tokens[start:end])], all_logits=True)
        parts.append(decoder.decoder_forward(model, batch, kv))
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-4)


def test_bfloat16_products_between_our_own_operations_differ_by_their_rounding_alone():
    mixed = make("torch", ops_impl="cpu", linear_dtype=torch.bfloat16)
    same = make("torch", ops_impl="cpu")
    reference = make("reference")
    kv, same_kv, reference_kv = caches(mixed), caches(same), caches(reference)
    for rows in STEPS:
        batch = make_batch(rows, all_logits=True)
        want = decoder.decoder_forward(reference, batch, reference_kv)
        got = decoder.decoder_forward(mixed, batch, kv)
        assert got.dtype == torch.float32
        # Some 13 products in a row, each rounding inputs and outputs to 8 bits.
        error = (got - want).norm() / want.norm()
        assert 1e-5 < error < 13 * 2 * 2**-8
        got = decoder.decoder_forward(same, batch, same_kv)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_decode_after_a_chunked_prompt_equals_the_whole_prompt():
    model = make("cpu")
    tokens = [int(token) for token in torch.arange(30) * 7 % VOCAB]
    table = [4, 2, 8, 6]
    whole = decoder.decoder_forward(model, make_batch([(table, 0, tokens)]), caches(model))
    kv = caches(model)
    for start, end in ((0, 11), (11, 12), (12, 29)):
        decoder.decoder_forward(model, make_batch([(table, start, tokens[start:end])]), kv)
    last = decoder.decoder_forward(model, make_batch([(table, 29, tokens[29:])]), kv)
    torch.testing.assert_close(last, whole, rtol=1e-5, atol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours():
    model = make("cpu")
    alone = decoder.decoder_forward(model, make_batch([([1], 0, [5, 6])]), caches(model))
    crowd = [([1], 0, [5, 6]), ([2, 3], 0, list(range(9))), ([4], 0, [1])]
    together = decoder.decoder_forward(model, make_batch(crowd), caches(model))
    torch.testing.assert_close(together[:1], alone, rtol=1e-5, atol=1e-5)


def test_no_logits_are_computed_when_none_are_named():
    model = make("cpu")
    batch = dataclasses.replace(
        make_batch([([1], 0, [5, 6])]), logit_rows=torch.empty(0, dtype=torch.int64)
    )
    assert decoder.decoder_forward(model, batch, caches(model)).shape == (0, VOCAB)


@pytest.mark.parametrize(
    ("error", "message", "changed"),
    [
        (DTypeError, "token_ids", {"token_ids": torch.zeros(2, dtype=torch.int32)}),
        (ShapeError, "positions", {"positions": torch.zeros(3, dtype=torch.int64)}),
        (ShapeError, "logit_rows", {"logit_rows": torch.zeros(3, dtype=torch.int64)}),
        (ShapeError, "cu_seqlens_q", {"cu_seqlens_q": torch.zeros(3, dtype=torch.int32)}),
        (DTypeError, "seq_lens", {"seq_lens": torch.tensor([2])}),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(error, message, changed):
    model = make("cpu")
    batch = dataclasses.replace(make_batch([([1], 0, [5, 6])]), **changed)
    with pytest.raises(error, match=message):
        decoder.decoder_forward(model, batch, caches(model))


def test_caches_of_another_layout_or_number_are_refused():
    model = make("cpu")
    batch = make_batch([([1], 0, [5])])
    with pytest.raises(ShapeError, match="one per layer"):
        decoder.decoder_forward(model, batch, caches(model)[:2])
    with pytest.raises(ShapeError, match="new_kv_cache"):
        decoder.decoder_forward(model, batch, caches(make("torch")))
    with pytest.raises(DTypeError, match="k_scale must be given"):
        decoder.decoder_forward(model, batch, caches(model, FP8))


def test_weights_that_do_not_fit_the_shape_are_refused():
    model = make("cpu")
    with pytest.raises(ShapeError, match="layer 0 qkv"):
        decoder.prepare_decoder(
            dataclasses.replace(model.shape, heads=4),
            model.layers,
            embedding=model.embedding,
            final_norm=model.final_norm,
            lm_head=model.lm_head,
            cos_sin=model.cos_sin,
        )

import dataclasses

import pytest
import torch

from paceline_kernels import decoder
from paceline_kernels.errors import DTypeError, ShapeError
from paceline_kernels.paged_kv import FP8
from paceline_kernels.testing.decoders import VOCAB, caches_of, decoder_batch, random_decoder


def fp8_caches(model):
    """With a scale of its own for each layer, head, keys and values."""
    size = torch.tensor(4.0 / 448)
    heads = torch.arange(1, model.shape.kv_heads + 1) / model.shape.kv_heads
    return [
        kv._replace(k_scale=size * heads * (1 + index), v_scale=size * (2 - heads))
        for index, kv in enumerate(caches_of(model, FP8))
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
    native, reference = random_decoder("cpu", **sizes), random_decoder("reference", **sizes)
    native_kv, reference_kv = caches_of(native), caches_of(reference)
    for rows in STEPS:
        batch = decoder_batch(rows, all_logits=True)
        hidden = torch.empty(batch.token_ids.shape[0], native.shape.hidden)
        got = decoder.decoder_forward(native, batch, native_kv, hidden_out=hidden)
        want_hidden = torch.empty_like(hidden)
        want = decoder.decoder_forward(reference, batch, reference_kv, hidden_out=want_hidden)
        # Each side is off by the rounding of some 20 operations on values of size 10 in 3 layers.
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(hidden, want_hidden, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("extras", [False, True])
def test_an_fp8_cache_differs_from_the_reference_by_turned_roundings_alone(extras):
    native, reference = (
        random_decoder("cpu", extras=extras),
        random_decoder("reference", extras=extras),
    )
    native_kv, reference_kv, full_kv = (
        fp8_caches(native),
        fp8_caches(reference),
        caches_of(reference),
    )
    for rows in STEPS:
        batch = decoder_batch(rows, all_logits=True)
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
    model = random_decoder("cpu")
    tokens = [int(token) for token in torch.arange(30) * 7 % VOCAB]
    table = [4, 2, 8, 6]
    whole = decoder.decoder_forward(
        model, decoder_batch([(table, 0, tokens)], all_logits=True), fp8_caches(model)
    )
    kv, parts = fp8_caches(model), []
    for start, end in ((0, 11), (11, 12), (12, 29), (29, 30)):
        batch = decoder_batch([(table, start, tokens[start:end])], all_logits=True)
        parts.append(decoder.decoder_forward(model, batch, kv))
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-4)


def test_bfloat16_products_between_our_own_operations_differ_by_their_rounding_alone():
    mixed = random_decoder("torch", ops_impl="cpu", linear_dtype=torch.bfloat16)
    same = random_decoder("torch", ops_impl="cpu")
    reference = random_decoder("reference")
    kv, same_kv, reference_kv = caches_of(mixed), caches_of(same), caches_of(reference)
    for rows in STEPS:
        batch = decoder_batch(rows, all_logits=True)
        want = decoder.decoder_forward(reference, batch, reference_kv)
        got = decoder.decoder_forward(mixed, batch, kv)
        assert got.dtype == torch.float32
        # Some 13 products in a row, each rounding inputs and outputs to 8 bits.
        error = (got - want).norm() / want.norm()
        assert 1e-5 < error < 13 * 2 * 2**-8
        got = decoder.decoder_forward(same, batch, same_kv)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_decode_after_a_chunked_prompt_equals_the_whole_prompt():
    model = random_decoder("cpu")
    tokens = [int(token) for token in torch.arange(30) * 7 % VOCAB]
    table = [4, 2, 8, 6]
    whole = decoder.decoder_forward(model, decoder_batch([(table, 0, tokens)]), caches_of(model))
    kv = caches_of(model)
    for start, end in ((0, 11), (11, 12), (12, 29)):
        decoder.decoder_forward(model, decoder_batch([(table, start, tokens[start:end])]), kv)
    last = decoder.decoder_forward(model, decoder_batch([(table, 29, tokens[29:])]), kv)
    torch.testing.assert_close(last, whole, rtol=1e-5, atol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours():
    model = random_decoder("cpu")
    alone = decoder.decoder_forward(model, decoder_batch([([1], 0, [5, 6])]), caches_of(model))
    crowd = [([1], 0, [5, 6]), ([2, 3], 0, list(range(9))), ([4], 0, [1])]
    together = decoder.decoder_forward(model, decoder_batch(crowd), caches_of(model))
    torch.testing.assert_close(together[:1], alone, rtol=1e-5, atol=1e-5)


def test_no_logits_are_computed_when_none_are_named():
    model = random_decoder("cpu")
    batch = dataclasses.replace(
        decoder_batch([([1], 0, [5, 6])]), logit_rows=torch.empty(0, dtype=torch.int64)
    )
    assert decoder.decoder_forward(model, batch, caches_of(model)).shape == (0, VOCAB)


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
    model = random_decoder("cpu")
    batch = dataclasses.replace(decoder_batch([([1], 0, [5, 6])]), **changed)
    with pytest.raises(error, match=message):
        decoder.decoder_forward(model, batch, caches_of(model))


def test_caches_of_another_layout_or_number_are_refused():
    model = random_decoder("cpu")
    batch = decoder_batch([([1], 0, [5])])
    with pytest.raises(ShapeError, match="one per layer"):
        decoder.decoder_forward(model, batch, caches_of(model)[:2])
    with pytest.raises(ShapeError, match="new_kv_cache"):
        decoder.decoder_forward(model, batch, caches_of(random_decoder("torch")))
    with pytest.raises(DTypeError, match="k_scale must be given"):
        decoder.decoder_forward(model, batch, caches_of(model, FP8))


def test_weights_that_do_not_fit_the_shape_are_refused():
    model = random_decoder("cpu")
    with pytest.raises(ShapeError, match="layer 0 qkv"):
        decoder.prepare_decoder(
            dataclasses.replace(model.shape, heads=4),
            model.layers,
            embedding=model.embedding,
            final_norm=model.final_norm,
            lm_head=model.lm_head,
            cos_sin=model.cos_sin,
        )

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.serve.text.vocabulary import Vocabulary
from paceline_engine.testing.tiny_model import tiny_tokenizer
from paceline_engine.testing.tiny_tokenizers import (
    byte_fallback_tokenizer,
    metaspace_tokenizer,
    word_piece_tokenizer,
)

BYTE_LEVEL = tiny_tokenizer()
VOCABULARY = Vocabulary(BYTE_LEVEL)


@given(st.text())
def test_bytes_of_tokens_join_to_the_bytes_of_the_text(text: str) -> None:
    token_ids = BYTE_LEVEL.encode(text).ids
    assert b"".join(map(VOCABULARY.bytes_of, token_ids)) == text.encode()


def test_half_a_character_has_bytes_but_no_text() -> None:
    first, *_ = BYTE_LEVEL.encode("日").ids
    assert VOCABULARY.text_of(first) is None
    assert VOCABULARY.bytes_of(first) == b"\xe6"
    assert VOCABULARY.name_of(first) == "bytes:\\xe6"


def test_special_tokens_are_known() -> None:
    assert VOCABULARY.special_ids == {0, 1, 2}
    assert VOCABULARY.text_of(2) == "<|im_end|>"


def test_an_id_outside_the_vocabulary_is_nothing() -> None:
    assert VOCABULARY.bytes_of(10**6) == b""


def test_byte_tokens_of_sentencepiece_are_bytes() -> None:
    tokenizer = byte_fallback_tokenizer()
    vocabulary = Vocabulary(tokenizer)
    byte = tokenizer.token_to_id("<0xE2>")
    assert byte is not None
    assert vocabulary.bytes_of(byte) == b"\xe2"
    word = tokenizer.token_to_id("▁world")
    assert word is not None
    assert vocabulary.text_of(word) == " world"


@pytest.mark.parametrize(
    ("make", "is_local"),
    [
        (tiny_tokenizer, True),
        (byte_fallback_tokenizer, True),
        (metaspace_tokenizer, True),
        (word_piece_tokenizer, False),
    ],
)
def test_decoders_that_look_at_neighbours_are_told_apart(make, is_local: bool) -> None:  # type: ignore[no-untyped-def]
    assert Vocabulary(make()).is_local is is_local

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from paceline_engine.serve.text.detokenizer import StopMatcher, decode, incremental_text
from paceline_engine.serve.text.vocabulary import Vocabulary
from paceline_engine.testing.tiny_model import tiny_tokenizer
from paceline_engine.testing.tiny_tokenizers import (
    byte_fallback_tokenizer,
    metaspace_tokenizer,
    word_piece_tokenizer,
)

BYTE_LEVEL = tiny_tokenizer()
BYTE_FALLBACK = byte_fallback_tokenizer()
METASPACE = metaspace_tokenizer()
WORD_PIECE = word_piece_tokenizer()
# Its decoder replaces more than a character, so that it could look at neighbours.
WINDOWED = byte_fallback_tokenizer()
WINDOWED.decoder = decoders.Sequence([decoders.Replace("of", "of"), decoders.ByteFallback()])
TOKENIZERS = (BYTE_LEVEL, BYTE_FALLBACK, METASPACE, WORD_PIECE, WINDOWED)
VOCABULARIES = {id(t): Vocabulary(t) for t in TOKENIZERS}


def streamed(tokenizer: Tokenizer, token_ids: Sequence[int], *, skip: bool) -> list[str]:
    text = incremental_text(VOCABULARIES[id(tokenizer)], skip_special_tokens=skip, at_start=True)
    return [text.push(token_id) for token_id in token_ids] + [text.flush()]


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=40)


@given(ids_of(BYTE_LEVEL), st.booleans())
def test_any_tokens_give_the_text_of_decoding_them_at_once(ids: list[int], skip: bool) -> None:
    expected = BYTE_LEVEL.decode(ids, skip_special_tokens=skip)
    assert "".join(streamed(BYTE_LEVEL, ids, skip=skip)) == expected
    assert decode(VOCABULARIES[id(BYTE_LEVEL)], ids, skip_special_tokens=skip) == expected


@pytest.mark.slow
@given(ids_of(METASPACE), st.booleans())
def test_metaspace_text_is_the_text_of_decoding_at_once(ids: list[int], skip: bool) -> None:
    expected = METASPACE.decode(ids, skip_special_tokens=skip)
    assert "".join(streamed(METASPACE, ids, skip=skip)) == expected


@pytest.mark.slow
@given(st.lists(st.sampled_from(["▁", "Hello", "▁world", "é", "日", "a", "🎉", "½", "</s>"])))
def test_byte_fallback_text_is_the_text_of_decoding_at_once(words: list[str]) -> None:
    ids: list[int] = []
    for word in words:
        known = BYTE_FALLBACK.token_to_id(word)
        bytes_ = [BYTE_FALLBACK.token_to_id(f"<0x{byte:02X}>") for byte in word.encode()]
        ids += [known] if known is not None else [i for i in bytes_ if i is not None]
    expected = BYTE_FALLBACK.decode(ids, skip_special_tokens=True)
    assert "".join(streamed(BYTE_FALLBACK, ids, skip=True)) == expected


@pytest.mark.slow
@given(st.lists(st.integers(0, 8), max_size=30))
def test_a_decoder_that_looks_at_neighbours_gives_its_own_text(ids: list[int]) -> None:
    expected = WORD_PIECE.decode(ids, skip_special_tokens=True)
    assert "".join(streamed(WORD_PIECE, ids, skip=True)) == expected


@pytest.mark.slow
@given(st.text(min_size=1))
@example("🎉 日本語 naïve 👩‍👩‍👧‍👦")
def test_each_character_appears_with_the_token_that_completes_it(text: str) -> None:
    ids = BYTE_LEVEL.encode(text).ids
    data = b""
    pieces = streamed(BYTE_LEVEL, ids, skip=True)
    given_out = ""
    for token_id, piece in zip(ids, pieces, strict=False):
        data += VOCABULARIES[id(BYTE_LEVEL)].bytes_of(token_id)
        given_out += piece
        # As much as is certain: all complete characters of the bytes so far, and not one less.
        assert given_out == data.decode("utf-8", "ignore")


def test_an_emoji_over_four_tokens_is_neither_broken_nor_late() -> None:
    ids = BYTE_LEVEL.encode("🎉").ids
    assert len(ids) == 4
    assert streamed(BYTE_LEVEL, ids, skip=True) == ["", "", "", "🎉", ""]


def test_an_unfinished_character_at_the_end_is_not_lost() -> None:
    ids = BYTE_LEVEL.encode("🎉").ids[:2]
    assert streamed(BYTE_LEVEL, ids, skip=True) == ["", "", "�"]


def bytes_through_windows(data: bytes) -> list[str]:
    ids = [WINDOWED.token_to_id(f"<0x{byte:02X}>") for byte in data]
    return streamed(WINDOWED, [i for i in ids if i is not None], skip=True)


def test_through_windows_an_emoji_is_neither_broken_nor_late_nor_lost() -> None:
    assert bytes_through_windows("a🎉b".encode()) == ["a", "", "", "", "🎉", "b", ""]
    assert bytes_through_windows("a🎉".encode()[:3]) == ["a", "", "", "��"]


def test_through_windows_a_byte_that_is_no_character_holds_nothing_back_for_long() -> None:
    pieces = bytes_through_windows(b"\xff" * 20)
    assert "".join(pieces) == "�" * 20
    assert sum(map(bool, pieces[:-1])) == 2


def test_special_tokens_can_be_shown() -> None:
    assert streamed(BYTE_LEVEL, [1], skip=False) == ["<|im_start|>", ""]
    assert streamed(BYTE_LEVEL, [1], skip=True) == ["", ""]


def test_output_behind_a_prompt_keeps_its_first_space() -> None:
    text = incremental_text(VOCABULARIES[id(BYTE_FALLBACK)], at_start=False)
    word = BYTE_FALLBACK.token_to_id("▁world")
    assert word is not None
    assert text.push(word) == " world"


SMALL = st.text(alphabet="ab", min_size=1, max_size=4)


def reference_cut(text: str, stops: Sequence[str], *, include: bool) -> tuple[str, str | None]:
    """First completed stop, the longer one of two that end together."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@pytest.mark.slow
@given(
    st.lists(st.text(alphabet="abc", max_size=5), max_size=12),
    st.lists(SMALL, min_size=1, max_size=3),
    st.booleans(),
)
@example(["a", "b"], ["ab"], False)
@example(["aab"], ["aab", "ab"], False)
def test_stop_strings_cut_where_the_whole_text_would_be_cut(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    matcher = StopMatcher(stops, include=include)
    given_out, found = "", None
    for piece in pieces:
        text, found = matcher.push(piece)
        given_out += text
        if found:
            break
    else:
        given_out += matcher.flush()
    assert (given_out, found) == reference_cut("".join(pieces), stops, include=include)


@pytest.mark.slow
@given(
    st.lists(st.text(alphabet="abc", min_size=1, max_size=3), max_size=12),
    st.lists(SMALL, min_size=1, max_size=3),
)
def test_only_a_proper_prefix_of_a_stop_string_is_held(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen = given_out = ""
    for piece in pieces:
        text, found = matcher.push(piece)
        seen += piece
        given_out += text
        if found:
            break
        held = seen[len(given_out) :]
        longest = max(
            (k for stop in stops for k in range(len(stop)) if seen.endswith(stop[:k])), default=0
        )
        assert len(held) == longest


def test_with_the_stop_string_in_the_output_nothing_is_held() -> None:
    matcher = StopMatcher(["END"], include=True)
    assert matcher.push("xE") == ("xE", None)
    assert matcher.push("NDy") == ("ND", "END")


@pytest.mark.slow
@given(
    st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=10),
    st.lists(SMALL, min_size=1, max_size=3),
    st.integers(0, 10),
)
def test_a_stop_string_completed_before_min_tokens_is_ordinary_text(
    pieces: list[str], stops: list[str], min_tokens: int
) -> None:
    matcher = StopMatcher(stops)
    given_out, found = "", None
    for i, piece in enumerate(pieces, start=1):
        text, found = matcher.push(piece, is_active=i >= min_tokens)
        given_out += text
        if found:
            break
    else:
        given_out += matcher.flush()
    expected, expected_stop = "".join(pieces), None
    before = len("".join(pieces[: max(0, min_tokens - 1)]))
    for end in range(before + 1, len(expected) + 1):
        ending = [stop for stop in stops if expected[:end].endswith(stop)]
        if ending:
            expected_stop = max(ending, key=len)
            expected = expected[: end - len(expected_stop)]
            break
    assert (given_out, found) == (expected, expected_stop)


@pytest.mark.parametrize("length", [200, 4000])
def test_a_long_run_of_near_misses_stays_correct(length: int) -> None:
    matcher = StopMatcher(["a" * 100 + "b"])
    given_out = "".join(matcher.push("a")[0] for _ in range(length))
    assert given_out == "a" * (length - 100)
    assert matcher.push("b") == ("", "a" * 100 + "b")

import json

import msgspec

from paceline_engine.core.plan import TokenLogprobs
from paceline_engine.serve.openai import logprobs
from paceline_engine.serve.openai.choice import LoggedToken
from paceline_engine.serve.text.vocabulary import Vocabulary
from paceline_engine.testing.tiny_model import tiny_tokenizer
from paceline_engine.testing.tiny_tokenizers import byte_fallback_tokenizer

TOKENIZER = tiny_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER)
HALF, OTHER_HALF = TOKENIZER.encode("日").ids[0], TOKENIZER.encode("é").ids[0]
(LETTER,) = TOKENIZER.encode("x").ids


def entry(token_id: int, top: dict[int, float], logprob: float = -3.0) -> TokenLogprobs:
    return TokenLogprobs(
        token_id=token_id,
        logprob=logprob,
        rank=9,
        top_ids=tuple(top),
        top_logprobs=tuple(top.values()),
    )


def test_candidates_that_look_alike_stay_apart_in_chat() -> None:
    logged = [
        LoggedToken(token_id=LETTER, entry=entry(LETTER, {HALF: -1, OTHER_HALF: -2}), offset=0)
    ]
    (item,) = logprobs.chat_logprobs(VOCABULARY, logged)["content"]
    assert item["token"] == "x"
    assert item["bytes"] == [120]
    assert item["logprob"] == -3.0
    assert [top["bytes"] for top in item["top_logprobs"]] == [[0xE6], [0xC3]]
    assert [top["logprob"] for top in item["top_logprobs"]] == [-1, -2]


def test_candidates_with_the_same_text_are_all_listed_in_chat() -> None:
    tokenizer = byte_fallback_tokenizer()
    word, byte = tokenizer.token_to_id("a"), tokenizer.token_to_id("<0x61>")
    assert word is not None
    assert byte is not None
    logged = [LoggedToken(token_id=5, entry=entry(5, {word: -1, byte: -2}), offset=0)]
    (item,) = logprobs.chat_logprobs(Vocabulary(tokenizer), logged)["content"]
    assert [(top["token"], top["logprob"]) for top in item["top_logprobs"]] == [
        ("a", -1),
        ("a", -2),
    ]


def test_without_candidates_the_list_is_empty() -> None:
    logged = [LoggedToken(token_id=LETTER, entry=entry(LETTER, {}), offset=0)]
    assert logprobs.chat_logprobs(VOCABULARY, logged)["content"][0]["top_logprobs"] == []


def test_text_completions_keep_tokens_with_the_same_text_apart() -> None:
    tokenizer = byte_fallback_tokenizer()
    word, byte = tokenizer.token_to_id("a"), tokenizer.token_to_id("<0x61>")
    assert word is not None
    assert byte is not None
    logged = [LoggedToken(token_id=5, entry=entry(5, {word: -1, byte: -2}), offset=0)]
    shown = logprobs.completion_logprobs(Vocabulary(tokenizer), logged, 2)
    (top,) = shown["top_logprobs"]
    assert len(top) == 3
    assert top["a"] == -1
    assert top[f"token_id:{byte}"] == -2


def test_a_token_among_the_best_is_listed_once() -> None:
    logged = [LoggedToken(token_id=LETTER, entry=entry(LETTER, {LETTER: -3, HALF: -4}), offset=0)]
    (top,) = logprobs.completion_logprobs(VOCABULARY, logged, 2)["top_logprobs"]
    assert top == {"x": -3.0, "bytes:\\xe6": -4}


def test_no_more_candidates_than_asked_for() -> None:
    logged = [LoggedToken(token_id=LETTER, entry=entry(LETTER, {1: -1, 2: -2, 3: -4}), offset=0)]
    (top,) = logprobs.completion_logprobs(VOCABULARY, logged, 1)["top_logprobs"]
    assert list(top.values()) == [-3.0, -1]
    shown = logprobs.prompt_logprobs(VOCABULARY, [entry(LETTER, {1: -1, 2: -2})], 1)
    assert shown[0] is None
    assert shown[1] is not None
    assert {name: value["rank"] for name, value in shown[1].items()} == {str(LETTER): 9, "1": 1}


def test_minus_infinity_is_json() -> None:
    logged = [LoggedToken(token_id=LETTER, entry=entry(LETTER, {}, float("-inf")), offset=0)]
    shown = json.loads(msgspec.json.encode(logprobs.chat_logprobs(VOCABULARY, logged)))
    assert shown["content"][0]["logprob"] == -9999.0

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.core.request import SamplingParams
from paceline_engine.serve.openai.errors import ApiError
from paceline_engine.serve.openai.openai_types import ChatBody, CompletionBody
from paceline_engine.serve.openai.sampling import fit_prompt, sampling_params
from paceline_engine.serve.step.engine_client import EngineInfo
from paceline_engine.serve.text.tokenizer import TextTokenizer

INFO = EngineInfo(
    model="tiny",
    model_dir="",
    revision="",
    max_model_len=100,
    num_blocks=8,
    block_size=16,
    vocab_size=512,
    eos_token_ids=(2,),
    dtype="Float32",
    kv_cache_dtype="Float32",
)


def chat(**fields: Any) -> ChatBody:
    return ChatBody.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})


def text(**fields: Any) -> CompletionBody:
    return CompletionBody.model_validate({"prompt": "x", **fields})


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> TextTokenizer:
    return TextTokenizer.load(tiny_folder)


def params(
    tokenizer: TextTokenizer, body: ChatBody | CompletionBody, num_prompt_tokens: int = 10
) -> SamplingParams:
    return sampling_params(
        body, num_prompt_tokens=num_prompt_tokens, info=INFO, tokenizer=tokenizer
    )


def test_defaults_are_openais(tokenizer: TextTokenizer) -> None:
    assert params(tokenizer, chat()) == SamplingParams(max_tokens=90)
    assert params(tokenizer, text()) == SamplingParams(max_tokens=16)


def test_max_tokens_is_clamped_to_the_window(tokenizer: TextTokenizer) -> None:
    assert params(tokenizer, chat(max_tokens=10**30)).max_tokens == 90
    assert params(tokenizer, text(max_tokens=50), num_prompt_tokens=99).max_tokens == 1
    clamped = params(tokenizer, chat(max_tokens=500, min_tokens=400))
    assert (clamped.max_tokens, clamped.min_tokens) == (90, 90)


def test_the_newer_name_of_max_tokens_wins(tokenizer: TextTokenizer) -> None:
    assert params(tokenizer, chat(max_tokens=5, max_completion_tokens=7)).max_tokens == 7


@pytest.mark.parametrize("asked", [0, 1e-300, 1e-40, 1e-6])
def test_a_temperature_that_logits_cannot_be_divided_by_is_greedy(
    tokenizer: TextTokenizer, asked: float
) -> None:
    assert params(tokenizer, text(temperature=asked)).temperature == 0
    assert params(tokenizer, text(temperature=1e-5)).temperature == 1e-5


def test_top_k_is_in_the_engines_form(tokenizer: TextTokenizer) -> None:
    assert params(tokenizer, chat(top_k=-1)).top_k == 0
    assert params(tokenizer, chat(top_k=10**30)).top_k == 512


def test_log_probabilities_are_asked_for_as_each_endpoint_means_it(
    tokenizer: TextTokenizer,
) -> None:
    assert params(tokenizer, chat(top_logprobs=0)).logprobs is None
    assert params(tokenizer, chat(logprobs=True)).logprobs == 0
    assert params(tokenizer, chat(logprobs=True, top_logprobs=4)).logprobs == 4
    assert params(tokenizer, text(logprobs=3)).logprobs == 3
    assert params(tokenizer, text(logprobs=3)).prompt_logprobs is None
    assert params(tokenizer, text(logprobs=3, echo=True)).prompt_logprobs == 3
    assert params(tokenizer, text(logprobs=3, echo=True, prompt_logprobs=5)).prompt_logprobs == 5


def test_everything_else_is_passed_on(tokenizer: TextTokenizer) -> None:
    body = chat(
        temperature=0.0,
        top_p=0.5,
        min_p=0.1,
        seed=-3,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.5,
        logit_bias={"7": -100, "07": 3.0, "5": 1},
        stop_token_ids=[9, 9, 8],
        allowed_token_ids=[3, 1, 3],
        ignore_eos=True,
        min_tokens=2,
    )
    assert params(tokenizer, body) == SamplingParams(
        temperature=0.0,
        top_p=0.5,
        min_p=0.1,
        seed=-3,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.5,
        logit_bias=((5, 1.0), (7, 3.0)),
        stop_token_ids=(9, 8),
        allowed_token_ids=(1, 3),
        ignore_eos=True,
        max_tokens=90,
        min_tokens=2,
    )


def test_bad_words_are_banned_at_the_start_and_after_a_space(tokenizer: TextTokenizer) -> None:
    banned = params(tokenizer, chat(bad_words=["bridge"])).bad_words
    texts = {tokenizer.tokenizer.decode(list(sequence)) for sequence in banned}
    assert texts == {"bridge", " bridge"}


def test_a_prompt_is_cut_from_its_head_when_asked() -> None:
    ids = list(range(200))
    assert fit_prompt(ids, text(truncate_prompt_tokens=5), INFO, "prompt") == [*range(195, 200)]
    assert fit_prompt(ids, text(truncate_prompt_tokens=-1), INFO, "prompt") == [*range(116, 200)]
    everything = text(truncate_prompt_tokens=-1, max_tokens=0, echo=True)
    assert len(fit_prompt(ids, everything, INFO, "prompt")) == 100


def test_a_prompt_without_output_may_fill_the_window() -> None:
    assert len(fit_prompt([1] * 100, text(max_tokens=0, echo=True), INFO, "prompt")) == 100
    with pytest.raises(ApiError, match="100 tokens"):
        fit_prompt([1] * 100, text(max_tokens=1), INFO, "prompt")


def test_a_request_that_leaves_no_token_is_refused(tokenizer: TextTokenizer) -> None:
    (letter,) = tokenizer.encode("x", add_special_tokens=False)
    for fields in (
        {"allowed_token_ids": [letter], "bad_words": ["x"]},
        {"allowed_token_ids": [2], "min_tokens": 1},
        {"allowed_token_ids": [9], "stop_token_ids": [9], "min_tokens": 1},
    ):
        with pytest.raises(ApiError, match="allow more"):
            params(tokenizer, text(**fields))
    assert params(tokenizer, text(allowed_token_ids=[2])).allowed_token_ids == (2,)


def test_a_token_that_only_the_tokenizer_knows_never_reaches_the_model(
    tokenizer: TextTokenizer,
) -> None:
    with pytest.raises(ApiError, match=r"\[0, 512\), got 512"):
        fit_prompt([1, 512], text(), INFO, "prompt")
    assert fit_prompt([512, 1], text(truncate_prompt_tokens=1), INFO, "prompt") == [1]
    small = replace(INFO, vocab_size=4)
    banned = sampling_params(
        text(bad_words=["bridge"]), num_prompt_tokens=1, info=small, tokenizer=tokenizer
    ).bad_words
    assert banned == ()

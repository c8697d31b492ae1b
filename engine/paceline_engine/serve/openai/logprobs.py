"""Log-probabilities in the two forms of the OpenAI API, and vLLM's for prompts."""

from collections.abc import Iterable, Sequence
from typing import Any

from paceline_engine.core.plan import TokenLogprobs
from paceline_engine.serve.openai.choice import LoggedToken
from paceline_engine.serve.text.vocabulary import Vocabulary

_LEAST = -9999.0
"""Stands for minus infinity, which JSON lacks; OpenAI's own convention."""


def chat_logprobs(vocabulary: Vocabulary, logged: Sequence[LoggedToken]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion: lists with bytes, as many as asked for."""
    content = []
    for token in logged:
        entry = token.entry
        if entry is None:
            continue
        item = _candidate(vocabulary, entry.token_id, entry.logprob)
        item["top_logprobs"] = [
            _candidate(vocabulary, token_id, logprob)
            for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
        ]
        content.append(item)
    return {"content": content, "refusal": None}


def completion_logprobs(
    vocabulary: Vocabulary, logged: Sequence[LoggedToken], num_top: int
) -> dict[str, Any]:
    """`choices[].logprobs` of a text completion: the n best and the token itself."""
    return {
        "text_offset": [token.offset for token in logged],
        "tokens": [vocabulary.name_of(token.token_id) for token in logged],
        "token_logprobs": [
            None if token.entry is None else max(token.entry.logprob, _LEAST) for token in logged
        ],
        "top_logprobs": [
            None if token.entry is None else _by_name(vocabulary, token.entry, num_top)
            for token in logged
        ],
    }


def prompt_logprobs(
    vocabulary: Vocabulary, entries: Iterable[TokenLogprobs], num_top: int
) -> list[dict[str, Any] | None]:
    """The `prompt_logprobs` of vLLM: per prompt token, token id -> logprob, rank, text."""
    shown: list[dict[str, Any] | None] = [None]
    for entry in entries:
        candidates = {
            str(token_id): {
                "logprob": max(logprob, _LEAST),
                "rank": rank,
                "decoded_token": vocabulary.name_of(token_id),
            }
            for token_id, logprob, rank in _with_ranks(entry, num_top)
        }
        shown.append(candidates)
    return shown


def _with_ranks(entry: TokenLogprobs, num_top: int) -> Iterable[tuple[int, float, int]]:
    """The token itself, then the n best; the engine may have been asked for more than this."""
    yield entry.token_id, entry.logprob, entry.rank
    for i, token_id in enumerate(entry.top_ids[:num_top]):
        if token_id != entry.token_id:
            yield token_id, entry.top_logprobs[i], i + 1


def _candidate(vocabulary: Vocabulary, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": vocabulary.name_of(token_id),
        "logprob": max(logprob, _LEAST),
        "bytes": list(vocabulary.bytes_of(token_id)),
    }


def _by_name(vocabulary: Vocabulary, entry: TokenLogprobs, num_top: int) -> dict[str, float]:
    """Name -> log-probability. The API wants a mapping; tokens that look alike keep apart by id."""
    named: dict[str, float] = {}
    for token_id, logprob, _rank in _with_ranks(entry, num_top):
        name = vocabulary.name_of(token_id)
        if name in named:
            name = f"token_id:{token_id}"
        named[name] = max(logprob, _LEAST)
    return named

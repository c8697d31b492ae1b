"""What chat and text completions share when they are written as JSON, whole or in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from paceline_engine.serve.openai.choice import Choice, Increment, LoggedToken
from paceline_engine.serve.text.vocabulary import Vocabulary

encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt of an answer.

    Attributes:
        token_ids: as handed to the engine.
        text: what `echo` puts before the output.
        logged: the prompt tokens with their offsets in `text`, for echo with log-probabilities.
    """

    token_ids: list[int]
    text: str = ""
    logged: list[LoggedToken] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """What all forms of one answer share.

    Attributes:
        prompts: one for chat; choice i belongs to prompts[i // choices_per_prompt].
        num_logprobs: candidates per output token (and per echoed one); None: not asked for.
        num_prompt_logprobs: what the body asked for as `prompt_logprobs`.
    """

    answer_id: str
    created: int
    model: str
    vocabulary: Vocabulary
    prompts: Sequence[Prompt]
    choices_per_prompt: int
    echo: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None

    def prompt_of(self, choice: Choice) -> Prompt:
        """The prompt that a choice continues."""
        return self.prompts[choice.index // self.choices_per_prompt]


class Form(Protocol):
    """How one kind of endpoint writes its answer."""

    def open_choice(self, choice: Choice) -> bytes:
        """Events that begin a choice."""
        ...

    def chunk(self, choice: Choice, increment: Increment) -> bytes:
        """The event for an increment; empty if there is nothing to tell."""
        ...

    def close_choice(self, choice: Choice) -> bytes:
        """The event that says how a choice ended."""
        ...

    def usage_event(self, choices: Sequence[Choice]) -> bytes:
        """The event that carries the usage."""
        ...

    def whole(self, choices: Sequence[Choice], increments: Sequence[Increment]) -> bytes:
        """The answer at once; `increments` has everything of each choice."""
        ...


def usage(answering: Answering, choices: Sequence[Choice]) -> dict[str, Any]:
    """Token counts. A prompt counts once, however many choices continue it."""
    num_prompt = sum(len(prompt.token_ids) for prompt in answering.prompts)
    num_output = sum(choice.num_output_tokens for choice in choices)
    cached = sum(c.num_cached_tokens for c in choices[:: answering.choices_per_prompt])
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Frame:
    """The part of a chunk that is the same in the whole stream.

    What differs is put between two ready-made pieces of JSON: a chunk costs one encoded string.
    """

    def __init__(self, answering: Answering, kind: str) -> None:
        head = {
            "id": answering.answer_id,
            "object": kind,
            "created": answering.created,
            "model": answering.model,
        }
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if answering.include_usage else b"]}\n\n"

    def event(self, choice: bytes) -> bytes:
        """A chunk with one choice."""
        return self._head + choice + self._tail

    def usage_event(self, counts: dict[str, Any]) -> bytes:
        """The chunk without choices that carries the usage."""
        return self._head + b'],"usage":' + encode(counts) + b"}\n\n"


def whole_answer(
    answering: Answering, kind: str, shown: list[dict[str, Any]], choices: Sequence[Choice]
) -> dict[str, Any]:
    """An answer with its choices and its usage."""
    return {
        "id": answering.answer_id,
        "object": kind,
        "created": answering.created,
        "model": answering.model,
        "choices": shown,
        "usage": usage(answering, choices),
    }

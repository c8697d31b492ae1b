"""How a chat completion is written: `chat.completion` and its chunks."""

from collections.abc import Sequence
from typing import Any

from paceline_engine.serve.openai import logprobs
from paceline_engine.serve.openai.choice import Choice, Increment
from paceline_engine.serve.openai.rendering import Answering, Frame, encode, usage, whole_answer


class ChatForm:
    """`chat.completion` and its chunks."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._frame = Frame(answering, "chat.completion.chunk")
        self._is_plain = not (answering.num_logprobs is not None or answering.return_token_ids)

    def open_choice(self, choice: Choice) -> bytes:
        """The role chunk, and the echoed message if asked for."""
        prompt = self._answering.prompt_of(choice)
        first: dict[str, Any] = {
            "index": choice.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        if self._answering.return_token_ids:
            first["prompt_token_ids"] = prompt.token_ids
        events = self._frame.event(encode(first))
        if self._answering.echo and prompt.text:
            events += self.chunk(choice, Increment(text=prompt.text))
        return events

    def chunk(self, choice: Choice, increment: Increment) -> bytes:
        """A delta of content."""
        if self._is_plain:
            if not increment.text:
                return b""
            return self._frame.event(
                b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}'
                % (choice.index, encode(increment.text))
            )
        if not increment:
            return b""
        body: dict[str, Any] = {
            "index": choice.index,
            "delta": {"content": increment.text},
            "logprobs": self._logprobs(increment),
            "finish_reason": None,
        }
        if self._answering.return_token_ids:
            body["token_ids"] = increment.token_ids
        return self._frame.event(encode(body))

    def close_choice(self, choice: Choice) -> bytes:
        """The finish chunk."""
        return self._frame.event(
            encode(
                {
                    "index": choice.index,
                    "delta": {},
                    "logprobs": None,
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                }
            )
        )

    def usage_event(self, choices: Sequence[Choice]) -> bytes:
        """The chunk without choices that carries the usage."""
        return self._frame.usage_event(usage(self._answering, choices))

    def whole(self, choices: Sequence[Choice], increments: Sequence[Increment]) -> bytes:
        """A `chat.completion`."""
        answering = self._answering
        prompt = answering.prompts[0]
        head = prompt.text if answering.echo else ""
        shown = []
        for choice, increment in zip(choices, increments, strict=True):
            body: dict[str, Any] = {
                "index": choice.index,
                "message": {
                    "role": "assistant",
                    "content": head + increment.text,
                    "refusal": None,
                },
                "logprobs": self._logprobs(increment),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
            if answering.return_token_ids:
                body["token_ids"] = increment.token_ids
            shown.append(body)
        answer = whole_answer(answering, "chat.completion", shown, choices)
        if answering.num_prompt_logprobs is not None:
            entries = choices[0].prompt_logprobs
            answer["prompt_logprobs"] = logprobs.prompt_logprobs(
                answering.vocabulary, entries, answering.num_prompt_logprobs
            )
        if answering.return_token_ids:
            answer["prompt_token_ids"] = prompt.token_ids
        return encode(answer)

    def _logprobs(self, increment: Increment) -> dict[str, Any] | None:
        if self._answering.num_logprobs is None:
            return None
        return logprobs.chat_logprobs(self._answering.vocabulary, increment.logged)

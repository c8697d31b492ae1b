"""How a text completion is written, whole and in chunks."""

from collections.abc import Sequence
from typing import Any

from paceline_engine.serve.openai import logprobs
from paceline_engine.serve.openai.choice import Choice, Increment, LoggedToken
from paceline_engine.serve.openai.rendering import Answering, Frame, encode, usage, whole_answer


class CompletionForm:
    """`text_completion`, whole and in chunks."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._frame = Frame(answering, "text_completion")
        self._is_plain = not (answering.num_logprobs is not None or answering.return_token_ids)

    def open_choice(self, choice: Choice) -> bytes:
        """The echoed prompt, if asked for."""
        answering = self._answering
        if not (answering.echo or answering.return_token_ids):
            return b""
        body = self._choice(choice, self._echoed(choice))
        if answering.return_token_ids:
            body["prompt_token_ids"] = answering.prompt_of(choice).token_ids
            body["token_ids"] = []
        return self._frame.event(encode(body))

    def chunk(self, choice: Choice, increment: Increment) -> bytes:
        """A piece of text."""
        if self._is_plain:
            if not increment.text:
                return b""
            return self._frame.event(
                b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":null}'
                % (choice.index, encode(increment.text))
            )
        if not increment:
            return b""
        body = self._choice(choice, increment)
        if self._answering.return_token_ids:
            body["token_ids"] = increment.token_ids
        return self._frame.event(encode(body))

    def close_choice(self, choice: Choice) -> bytes:
        """The finish chunk."""
        body = {
            "index": choice.index,
            "text": "",
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        return self._frame.event(encode(body))

    def usage_event(self, choices: Sequence[Choice]) -> bytes:
        """The chunk without choices that carries the usage."""
        return self._frame.usage_event(usage(self._answering, choices))

    def whole(self, choices: Sequence[Choice], increments: Sequence[Increment]) -> bytes:
        """A `text_completion`."""
        answering = self._answering
        shown = []
        for choice, increment in zip(choices, increments, strict=True):
            echoed = self._echoed(choice)
            body = self._choice(
                choice,
                Increment(
                    text=echoed.text + increment.text, logged=echoed.logged + increment.logged
                ),
            )
            body["finish_reason"] = choice.finish_reason
            body["stop_reason"] = choice.stop_reason
            if answering.num_prompt_logprobs is not None:
                entries = choice.prompt_logprobs
                body["prompt_logprobs"] = logprobs.prompt_logprobs(
                    answering.vocabulary, entries, answering.num_prompt_logprobs
                )
            if answering.return_token_ids:
                body["prompt_token_ids"] = answering.prompt_of(choice).token_ids
                body["token_ids"] = increment.token_ids
            shown.append(body)
        return encode(whole_answer(answering, "text_completion", shown, choices))

    def _choice(self, choice: Choice, increment: Increment) -> dict[str, Any]:
        shown = None
        if self._answering.num_logprobs is not None:
            shown = logprobs.completion_logprobs(
                self._answering.vocabulary, increment.logged, self._answering.num_logprobs
            )
        return {
            "index": choice.index,
            "text": increment.text,
            "logprobs": shown,
            "finish_reason": None,
        }

    def _echoed(self, choice: Choice) -> Increment:
        """The prompt as the first piece of the text, its log-probabilities included."""
        if not self._answering.echo:
            return Increment()
        prompt = self._answering.prompt_of(choice)
        logged = [
            LoggedToken(token_id=token.token_id, entry=entry, offset=token.offset)
            for token, entry in zip(
                prompt.logged, [None, *choice.prompt_logprobs][: len(prompt.logged)], strict=True
            )
        ]
        return Increment(text=prompt.text, logged=logged)

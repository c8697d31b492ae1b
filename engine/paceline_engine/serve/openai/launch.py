"""From checked bodies and prompts to requests of the engine and the answer to the client."""

import dataclasses
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from starlette.requests import Request as HttpRequest

from paceline_engine.core.request import Request
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.openai.answer import GenerationAnswer
from paceline_engine.serve.openai.chat_form import ChatForm
from paceline_engine.serve.openai.choice import Choice, LoggedToken
from paceline_engine.serve.openai.completion_form import CompletionForm
from paceline_engine.serve.openai.errors import bad_request
from paceline_engine.serve.openai.generation import Generation
from paceline_engine.serve.openai.openai_types import ChatBody, CompletionBody
from paceline_engine.serve.openai.rendering import Answering, Prompt
from paceline_engine.serve.openai.sampling import num_logprobs, sampling_params
from paceline_engine.serve.openai.served_model import LoadedText, ServedModel
from paceline_engine.serve.step.engine_client import EngineClient
from paceline_engine.serve.text.detokenizer import IncrementalText, StopMatcher, incremental_text

MAX_SEQUENCES = 1024


@dataclass(slots=True, kw_only=True)
class Launcher:
    """What the generating routes share; mutable only in its counter."""

    client: EngineClient
    config: ServeConfig
    served: ServedModel
    request_ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def launch(
        self,
        http: HttpRequest,
        body: ChatBody | CompletionBody,
        prompts: list[Prompt],
        loaded: LoadedText,
        *,
        arrival_s: float,
        headers: dict[str, str],
    ) -> GenerationAnswer:
        """Make the answer; the engine hears of it when the answer is sent.

        Raises:
            ApiError: 400.
        """
        n = body.n or 1
        if n * len(prompts) > MAX_SEQUENCES:
            raise bad_request(
                f"n times the number of prompts must be <= {MAX_SEQUENCES}, got "
                f"{n * len(prompts)}; send several requests",
                "n",
            )
        http_id = body.request_id or http.state.request_id
        http.state.request_id = http_id
        asked = _Asked(http_id, http.state.tenant, arrival_s)
        choices = [
            choice
            for place, prompt in enumerate(prompts)
            for choice in self._choices_of(
                prompt, body, loaded, asked, first_index=place * n, is_only=n * len(prompts) == 1
            )
        ]
        answering = self._answering(body, prompts, loaded, http_id)
        is_chat = isinstance(body, ChatBody)
        return GenerationAnswer(
            Generation(self.client, choices),
            ChatForm(answering) if is_chat else CompletionForm(answering),
            is_stream=bool(body.stream),
            include_usage=answering.include_usage,
            headers=headers,
        )

    def _choices_of(
        self,
        prompt: Prompt,
        body: ChatBody | CompletionBody,
        loaded: LoadedText,
        asked: "_Asked",
        *,
        first_index: int,
        is_only: bool,
    ) -> Iterator[Choice]:
        """The `n` choices of one prompt, each with a request of its own."""
        params = sampling_params(
            body,
            num_prompt_tokens=len(prompt.token_ids),
            info=loaded.info,
            tokenizer=loaded.tokenizer,
        )
        for i in range(body.n or 1):
            index = first_index + i
            request = Request(
                request_id=next(self.request_ids),
                external_id=asked.http_id if is_only else f"{asked.http_id}-{index}",
                prompt_token_ids=tuple(prompt.token_ids),
                params=dataclasses.replace(params, choice=i),
                priority=body.priority or 0,
                tenant=asked.tenant,
                cache_salt=body.cache_salt or "",
                arrival_s=asked.arrival_s,
                has_stop_strings=bool(body.stop),
            )
            yield _choice(index, request, body, prompt, loaded)

    def _answering(
        self,
        body: ChatBody | CompletionBody,
        prompts: list[Prompt],
        loaded: LoadedText,
        http_id: str,
    ) -> Answering:
        """What the form of the answer depends on."""
        options = body.stream_options
        return Answering(
            answer_id=("chatcmpl-" if isinstance(body, ChatBody) else "cmpl-") + http_id,
            created=int(time.time()),
            model=self.served.name,
            vocabulary=loaded.tokenizer.vocabulary,
            prompts=prompts,
            choices_per_prompt=body.n or 1,
            echo=bool(body.echo),
            include_usage=bool(options is not None and options.include_usage),
            return_token_ids=bool(body.return_token_ids),
            num_logprobs=num_logprobs(body),
            num_prompt_logprobs=body.prompt_logprobs,
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the requests behind one HTTP request share."""

    http_id: str
    tenant: str
    arrival_s: float


def echoed_prompt(
    token_ids: list[int], given: str | None, body: CompletionBody, loaded: LoadedText
) -> Prompt:
    """A prompt with the text that `echo` shows.

    With log-probabilities the text is what the tokens say, so that offsets point into it; without,
    it is the text as given.
    """
    if not body.echo:
        return Prompt(token_ids=token_ids)
    text = _text_behind(None, body, loaded)
    pieces: list[str] = []
    logged: list[LoggedToken] = []
    offset = 0
    for token_id in token_ids:
        logged.append(LoggedToken(token_id=token_id, entry=None, offset=offset))
        pieces.append(text.push(token_id))
        offset += len(pieces[-1])
    if body.logprobs is None:
        return Prompt(token_ids=token_ids, text="".join(pieces) if given is None else given)
    return Prompt(token_ids=token_ids, text="".join(pieces), logged=logged)


def _text_behind(
    prompt: Prompt | None, body: ChatBody | CompletionBody, loaded: LoadedText
) -> IncrementalText:
    """Incremental text at the start of a prompt, or behind it."""
    is_echo = bool(body.echo) and isinstance(body, CompletionBody)
    text = incremental_text(
        loaded.tokenizer.vocabulary,
        skip_special_tokens=body.skip_special_tokens is not False,
        at_start=is_echo,
    )
    if is_echo and prompt is not None:
        # A character may begin in the prompt's last token and end in the first output token.
        for token_id in prompt.token_ids:
            text.push(token_id)
    return text


def _choice(
    index: int,
    request: Request,
    body: ChatBody | CompletionBody,
    prompt: Prompt,
    loaded: LoadedText,
) -> Choice:
    stop = body.stop or []
    include = bool(body.include_stop_str_in_output)
    return Choice(
        index=index,
        request=request,
        text=_text_behind(prompt, body, loaded),
        stops=StopMatcher([stop] if isinstance(stop, str) else stop, include=include),
        include_stop=include,
        first_offset=len(prompt.text),
    )

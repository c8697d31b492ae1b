"""One choice of an answer: from the engine's deltas to text, log-probabilities and an end."""

from dataclasses import dataclass, field

from paceline_engine.core.plan import TokenLogprobs
from paceline_engine.core.request import Finished, FinishReason, Request
from paceline_engine.serve.openai.errors import ApiError, from_finished
from paceline_engine.serve.step.engine_client import OutputDelta
from paceline_engine.serve.text.detokenizer import IncrementalText, StopMatcher


@dataclass(slots=True, kw_only=True)
class LoggedToken:
    """A token's log-probabilities and where its text begins.

    Attributes:
        entry: None for the first prompt token, which nothing predicts.
        offset: characters of decoded text before it.
    """

    token_id: int
    entry: TokenLogprobs | None
    offset: int


@dataclass(slots=True, kw_only=True)
class Increment:
    """What is new for one choice. Mutable slots: one is made per request and step."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logged: list[LoggedToken] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.token_ids or self.logged)


class Choice:
    """State of one choice; takes deltas until `finish_reason` or `failure` is set.

    Args:
        index: among all choices of the answer.
        request: as handed to the engine.
        text: continues behind the prompt.
        stops: finds the stop strings.
        include_stop: the text of a stop token is part of the answer.
        first_offset: characters that stand before the first output token (echo).

    Attributes:
        finish_reason: "stop" or "length" once ended well.
        stop_reason: the stop string or stop token id of the body that ended it.
        found_stop: the stop string that ended it.
        failure: how it failed.
        num_output_tokens: tokens that count so far.
    """

    def __init__(
        self,
        *,
        index: int,
        request: Request,
        text: IncrementalText,
        stops: StopMatcher,
        include_stop: bool,
        first_offset: int = 0,
    ) -> None:
        self.index = index
        self.request = request
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.found_stop: str | None = None
        self.failure: ApiError | None = None
        self.num_output_tokens = 0
        self.num_cached_tokens = 0
        self.prompt_logprobs: list[TokenLogprobs] = []
        self._text = text
        self._stops = stops
        self._include_stop = include_stop
        self._offset = first_offset
        self._min_tokens = request.params.min_tokens
        self._wants_logprobs = request.params.logprobs is not None
        self._is_plain = stops.is_empty and not self._wants_logprobs

    @property
    def is_done(self) -> bool:
        """No further delta is of interest."""
        return self.finish_reason is not None or self.failure is not None

    def take(self, delta: OutputDelta) -> Increment:
        """Take in what a step gave; the increment may be empty."""
        if delta.num_cached_tokens:
            self.num_cached_tokens = delta.num_cached_tokens
        if delta.prompt_logprobs:
            self.prompt_logprobs += delta.prompt_logprobs
        if self._is_plain and delta.finished is None:
            # Most deltas: nothing to look for, nothing to log.
            self.num_output_tokens += len(delta.token_ids)
            push = self._text.push
            text = "".join([push(token_id) for token_id in delta.token_ids])
            return Increment(text=text, token_ids=delta.token_ids)
        return self._take_with_care(delta)

    def _take_with_care(self, delta: OutputDelta) -> Increment:
        increment = Increment()
        parts: list[str] = []
        silent = self._silent_token(delta)
        for i, token_id in enumerate(delta.token_ids):
            piece = "" if i == silent else self._text.push(token_id)
            self.num_output_tokens += 1
            increment.token_ids.append(token_id)
            if self._wants_logprobs:
                increment.logged.append(
                    LoggedToken(
                        token_id=token_id,
                        entry=delta.logprobs[i] if i < len(delta.logprobs) else None,
                        offset=self._offset,
                    )
                )
                self._offset += len(piece)
            if piece and self._push(piece, parts):
                break
        else:
            if delta.finished is not None:
                self._end(delta.finished, parts)
        increment.text = "".join(parts)
        return increment

    def _push(self, piece: str, parts: list[str]) -> bool:
        """Append what may be given out; True if a stop string ended the choice."""
        is_active = self.num_output_tokens >= self._min_tokens
        text, stop = self._stops.push(piece, is_active=is_active)
        if text:
            parts.append(text)
        if stop is None:
            return False
        self.finish_reason = FinishReason.STOP.value
        self.stop_reason = self.found_stop = stop
        return True

    def _silent_token(self, delta: OutputDelta) -> int:
        """Index of the end token in this delta, whose text is not part of the answer."""
        finished = delta.finished
        if finished is None or finished.stop_token_id is None or self._include_stop:
            return -1
        return len(delta.token_ids) - 1

    def _end(self, finished: Finished, parts: list[str]) -> None:
        self.failure = from_finished(finished)
        if self.failure is not None:
            return
        rest = self._text.flush()
        if rest and self._push(rest, parts):
            return
        parts.append(self._stops.flush())
        self.finish_reason = finished.reason.value
        if finished.stop_token_id in self.request.params.stop_token_ids:
            self.stop_reason = finished.stop_token_id

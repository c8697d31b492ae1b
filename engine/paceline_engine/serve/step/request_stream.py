"""Outputs of one request between the socket and its reader.

A reader that is slow finds what came meanwhile as one delta; one that waits is woken once a step.
"""

import asyncio
from collections.abc import AsyncIterator

from paceline_engine.core.plan import TokenLogprobs
from paceline_engine.core.request import Finished
from paceline_engine.serve.step.engine_client import EngineGone, OutputDelta


class RequestStream:
    """Outputs of one accepted request. A mutable slots class: it is touched once per step."""

    __slots__ = (
        "_finished",
        "_gone",
        "_has_news",
        "_is_over",
        "_logprobs",
        "_num_cached_tokens",
        "_prompt_logprobs",
        "_tokens",
        "_waiter",
        "num_prompt_tokens",
        "request_id",
    )

    def __init__(self, request_id: int, num_prompt_tokens: int) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._num_cached_tokens = 0
        self._finished: Finished | None = None
        self._gone: str | None = None
        self._has_news = False
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> AsyncIterator[OutputDelta]:
        """Itself: there is one reader."""
        return self

    async def __anext__(self) -> OutputDelta:
        """The news since the last call.

        Raises:
            EngineGone: the step process ended before the request did.
        """
        if self._is_over:
            raise StopAsyncIteration
        if not self._has_news:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._take()

    def add_token(self, token: int) -> None:
        """One more output token."""
        self._tokens.append(token)
        self._wake()

    def add_tokens(self, tokens: list[int]) -> None:
        """Several tokens of one step."""
        self._tokens += tokens
        self._wake()

    def add_logprobs(self, entries: list[TokenLogprobs]) -> None:
        """Log-probabilities of output tokens that come in the same step."""
        self._logprobs += entries
        self._wake()

    def add_prompt_logprobs(self, entries: list[TokenLogprobs]) -> None:
        """Log-probabilities of further prompt positions."""
        self._prompt_logprobs += entries
        self._wake()

    def start(self, num_cached_tokens: int) -> None:
        """The request was admitted."""
        self._num_cached_tokens = num_cached_tokens
        self._wake()

    def end(self, finished: Finished) -> None:
        """The last news."""
        self._finished = finished
        self._wake()

    def lose(self, message: str) -> None:
        """The engine is gone; what has come so far is still delivered."""
        self._gone = message
        self._wake()

    def _wake(self) -> None:
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> OutputDelta:
        if self._gone is not None and not self._tokens and self._finished is None:
            self._is_over = True
            raise EngineGone(self._gone)
        self._has_news = self._gone is not None
        self._is_over = self._finished is not None
        delta = OutputDelta(
            token_ids=self._tokens,
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            num_cached_tokens=self._num_cached_tokens,
            finished=self._finished,
        )
        self._tokens, self._logprobs, self._prompt_logprobs = [], [], []
        return delta

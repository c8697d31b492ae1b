"""All choices of one HTTP request in the engine: submitted together, ended together."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from paceline_engine.serve.openai.choice import Choice, Increment
from paceline_engine.serve.step.engine_client import (
    EngineClient,
    EngineGone,
    OutputDelta,
    OutputStream,
)

Step = list[tuple[Choice, Increment]]
"""What one wake-up gives: at most one increment per choice."""


class Generation:
    """Owns the engine's requests behind one HTTP request.

    `close` must be called in the end, in every case: it aborts what still runs.
    """

    def __init__(self, client: EngineClient, choices: Sequence[Choice]) -> None:
        self.choices = choices
        self._client = client
        self._open: dict[int, Choice] = {}
        self._streams: list[tuple[Choice, OutputStream]] = []
        self._pumps: list[asyncio.Task[None]] = []

    async def submit(self) -> None:
        """Hand all choices to the engine.

        Raises:
            RequestRefused: one of them was not taken; `close` aborts the others.
            EngineGone: no engine.
        """
        for choice in self.choices:
            # Noted before the engine is asked: a client that goes away meanwhile leaves a request
            # whose acknowledgement nobody waits for.
            self._open[choice.request.request_id] = choice
            stream = await self._client.submit(choice.request)
            self._streams.append((choice, stream))

    async def steps(self) -> AsyncIterator[Step]:
        """Increments as they come, until every choice has ended.

        Raises:
            ApiError: a choice failed; the others are given up with it.
            EngineGone: the engine ended.
        """
        if len(self._streams) == 1:
            choice, stream = self._streams[0]
            async for delta in stream:
                increment = self._take(choice, delta)
                if increment or choice.is_done:
                    yield [(choice, increment)]
                if choice.is_done:
                    return
            raise EngineGone("the engine ended the output without a reason")
        async for step in self._merged_steps():
            yield step

    def close(self) -> None:
        """Abort what has not ended; safe to call twice."""
        for pump in self._pumps:
            pump.cancel()
        for request_id in self._open:
            self._client.abort(request_id)
        self._open.clear()

    def _take(self, choice: Choice, delta: OutputDelta) -> Increment:
        increment = choice.take(delta)
        request = choice.request
        if choice.is_done and request.request_id in self._open:
            del self._open[request.request_id]
            if request.has_stop_strings and choice.failure is None:
                self._client.finish(
                    request.request_id, choice.num_output_tokens, choice.found_stop or ""
                )
        if choice.failure is not None:
            raise choice.failure
        return increment

    async def _merged_steps(self) -> AsyncIterator[Step]:
        queue: asyncio.Queue[tuple[Choice, OutputDelta | Exception]] = asyncio.Queue()
        self._pumps = [
            asyncio.create_task(_pump(choice, stream, queue)) for choice, stream in self._streams
        ]
        while not all(choice.is_done for choice in self.choices):
            arrived = [await queue.get()]
            while not queue.empty():
                arrived.append(queue.get_nowait())
            step: dict[int, tuple[Choice, Increment]] = {}
            for choice, delta in arrived:
                if isinstance(delta, Exception):
                    raise delta
                if choice.is_done:
                    continue
                new = self._take(choice, delta)
                if choice.index in step:
                    _append(step[choice.index][1], new)
                elif new or choice.is_done:
                    step[choice.index] = (choice, new)
            if step:
                yield list(step.values())


def _append(old: Increment, new: Increment) -> None:
    old.text += new.text
    old.token_ids += new.token_ids
    old.logged += new.logged


async def _pump(
    choice: Choice,
    stream: OutputStream,
    queue: "asyncio.Queue[tuple[Choice, OutputDelta | Exception]]",
) -> None:
    try:
        async for delta in stream:
            queue.put_nowait((choice, delta))
            if delta.finished is not None:
                return
        raise EngineGone("the engine ended the output without a reason")
    except Exception as error:
        queue.put_nowait((choice, error))

"""Sends the answer to a generation: watches the client, streams or collects, cleans up."""

import asyncio
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from paceline_engine.serve.http_limits import CLIENT_CLOSED
from paceline_engine.serve.openai.choice import Increment
from paceline_engine.serve.openai.errors import ApiError, translate
from paceline_engine.serve.openai.generation import Generation, Step
from paceline_engine.serve.openai.rendering import Form

_DONE = b"data: [DONE]\n\n"


class GenerationAnswer(Response):
    """The answer to one request for tokens.

    Nothing is sent before the first token (or the end), so that a refusal, a deadline or a failure
    can still have its own status. A client that goes away in any phase ends the generation.

    Args:
        generation: not yet submitted.
        form: writes the JSON.
        is_stream: server-sent events, else one body.
        include_usage: the stream has a usage chunk.
        headers: besides the content type.
    """

    def __init__(
        self,
        generation: Generation,
        form: Form,
        *,
        is_stream: bool,
        include_usage: bool,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers=dict(headers))
        del self.headers["content-length"]
        self._generation = generation
        self._form = form
        self._is_stream = is_stream
        self._include_usage = include_usage
        self._is_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the generation and send what it gives."""
        work = asyncio.create_task(self._stream(send) if self._is_stream else self._collect(send))
        gone = asyncio.create_task(_client_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished = work.done()
            work.cancel()
            gone.cancel()
            # The engine hears of it first, then the tasks are waited for.
            self._generation.close()
            await asyncio.wait({work, gone})
        if finished or not work.cancelled():
            work.result()
        else:
            await self._tell_who_still_reads(scope, receive, send)

    async def _tell_who_still_reads(self, scope: Scope, receive: Receive, send: Send) -> None:
        """End the answer to a client that has only ended its sending; others do not get it."""
        error = ApiError(400, CLIENT_CLOSED, code="client_closed")
        if self._is_begun:
            await send({"type": "http.response.body", "body": _error_event(error)})
        else:
            await error.response()(scope, receive, send)

    async def _collect(self, send: Send) -> None:
        await self._generation.submit()
        everything = {choice.index: Increment() for choice in self._generation.choices}
        texts: dict[int, list[str]] = {index: [] for index in everything}
        async for step in self._generation.steps():
            for choice, increment in step:
                texts[choice.index].append(increment.text)
                everything[choice.index].token_ids += increment.token_ids
                everything[choice.index].logged += increment.logged
        for index, parts in texts.items():
            everything[index].text = "".join(parts)
        body = self._form.whole(self._generation.choices, list(everything.values()))
        await send(self._start(b"application/json", len(body)))
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, send: Send) -> None:
        await self._generation.submit()
        steps = self._generation.steps()
        opened: set[int] = set()
        try:
            async for step in steps:
                if not opened:
                    await send(self._start(b"text/event-stream; charset=utf-8", None))
                # One write per wake-up, whatever happened in it.
                data = self._events(step, opened)
                if data:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        except Exception as error:
            if not opened:
                raise
            # The status is long gone; the client is told in the stream, and there is no [DONE].
            event = _error_event(translate(error))
            await send({"type": "http.response.body", "body": event})
            return
        end = _DONE
        if self._include_usage:
            end = self._form.usage_event(self._generation.choices) + end
        await send({"type": "http.response.body", "body": end})

    def _events(self, step: Step, opened: set[int]) -> bytes:
        events = []
        for choice, increment in step:
            if choice.index not in opened:
                opened.add(choice.index)
                events.append(self._form.open_choice(choice))
            events.append(self._form.chunk(choice, increment))
            if choice.finish_reason is not None:
                events.append(self._form.close_choice(choice))
        return b"".join(events)

    def _start(self, content_type: bytes, length: int | None) -> Message:
        self._is_begun = True
        headers = [*self.raw_headers, (b"content-type", content_type)]
        if length is None:
            headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        else:
            headers.append((b"content-length", str(length).encode()))
        return {"type": "http.response.start", "status": 200, "headers": headers}


def _error_event(error: ApiError) -> bytes:
    return b"data: " + error.encode() + b"\n\n"


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

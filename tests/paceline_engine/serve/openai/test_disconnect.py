"""A client that goes away, in any phase, leaves nothing behind."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.core.request import Refusal, Request
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.openai.app import create_public_app
from paceline_engine.serve.step.engine_client import OutputDelta
from paceline_engine.testing.bodies import CHAT
from paceline_engine.testing.scripted_engine import Play, ScriptedEngine


class Client:
    """An ASGI client that decides when it goes away."""

    def __init__(self, body: dict[str, Any], *, still_reads: bool = False) -> None:
        self.still_reads = still_reads
        self._body: list[dict[str, Any]] = [
            {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        ]
        self.gone = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self.has_news = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if self._body:
            return self._body.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self.gone.is_set() and not self.still_reads:
            return  # as the server does
        self.sent.append(message)
        self.has_news.set()


def scope(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }


def app_for(engine: ScriptedEngine) -> Any:
    return create_public_app(engine, ServeConfig(model="tiny"), Drain(shutdown_timeout_s=1.0))


def endless(*, after: int, started: asyncio.Event) -> Play:
    """So many tokens, then silence for ever."""

    async def play(request: Request) -> AsyncIterator[OutputDelta]:
        for _ in range(after):
            yield OutputDelta(token_ids=[80])
        started.set()
        await asyncio.Event().wait()

    return play


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("after", [0, 3])
def test_whoever_goes_away_is_aborted(tiny_folder: Path, after: int, n: int, stream: bool) -> None:
    async def scenario() -> None:
        started = asyncio.Event()
        engine = ScriptedEngine(tiny_folder, endless(after=after, started=started))
        client = Client({**CHAT, "n": n, "stream": stream})
        request = scope("/v1/chat/completions")
        call = asyncio.create_task(app_for(engine)(request, client.receive, client.send))
        await started.wait()
        assert len(engine.running) == n
        client.gone.set()
        await call
        assert not engine.running
        assert set(engine.aborted) == {request.request_id for request in engine.submitted}
        started_answer = [message["type"] for message in client.sent]
        assert ("http.response.start" in started_answer) == (stream and after > 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("after", [0, 3])
def test_who_only_closed_the_sending_half_is_told_why_it_was_ended(
    tiny_folder: Path, after: int
) -> None:
    async def scenario() -> None:
        started = asyncio.Event()
        engine = ScriptedEngine(tiny_folder, endless(after=after, started=started))
        client = Client({**CHAT, "stream": True}, still_reads=True)
        request = scope("/v1/chat/completions")
        call = asyncio.create_task(app_for(engine)(request, client.receive, client.send))
        await started.wait()
        client.gone.set()
        await call
        assert not engine.running
        assert client.sent[0]["status"] == (200 if after else 400)
        assert b"keep it open until the answer has come" in client.sent[-1]["body"]
        assert not client.sent[-1].get("more_body")

    asyncio.run(scenario())


def test_a_client_that_goes_away_while_it_is_submitted_leaves_nothing(tiny_folder: Path) -> None:
    class Slow(ScriptedEngine):
        entered = asyncio.Event()

        async def submit(self, request: Request) -> Any:
            stream = await super().submit(request)
            self.entered.set()
            await asyncio.Event().wait()
            return stream

    async def scenario() -> None:
        engine = Slow(tiny_folder, endless(after=0, started=asyncio.Event()))
        client = Client(CHAT)
        request = scope("/v1/chat/completions")
        call = asyncio.create_task(app_for(engine)(request, client.receive, client.send))
        await engine.entered.wait()
        client.gone.set()
        await call
        assert not engine.running
        assert set(engine.aborted) == {1}
        assert not client.sent

    asyncio.run(scenario())


def test_a_client_that_is_gone_before_it_is_read_costs_nothing(tiny_folder: Path) -> None:
    async def scenario() -> None:
        engine = ScriptedEngine(tiny_folder, endless(after=0, started=asyncio.Event()))
        client = Client(CHAT)
        client._body.clear()
        client.gone.set()
        await app_for(engine)(scope("/v1/chat/completions"), client.receive, client.send)
        assert not engine.submitted

    asyncio.run(scenario())


def test_choices_that_ended_are_not_aborted(tiny_folder: Path) -> None:
    async def scenario() -> None:
        waiting = asyncio.Event()

        async def play(request: Request) -> AsyncIterator[OutputDelta]:
            yield OutputDelta(token_ids=[80])
            if request.params.choice == 1:
                waiting.set()
                await asyncio.Event().wait()
            yield OutputDelta(token_ids=[79])

        engine = ScriptedEngine(tiny_folder, play)
        client = Client({**CHAT, "n": 2, "stream": True, "stop": "n"})
        request = scope("/v1/chat/completions")
        call = asyncio.create_task(app_for(engine)(request, client.receive, client.send))
        await waiting.wait()
        while not engine.finished:  # noqa: ASYNC110 - the fake has no such event
            await asyncio.sleep(0)
        client.gone.set()
        await call
        assert [finished[0] for finished in engine.finished] == [1]
        assert engine.aborted == [2]

    asyncio.run(scenario())


def test_when_one_choice_is_refused_the_others_are_aborted(tiny_folder: Path) -> None:
    async def scenario() -> None:
        engine = ScriptedEngine(tiny_folder, endless(after=0, started=asyncio.Event()))
        refusal = Refusal(status=503, message="full", retry_after_s=1)
        engine.refuse = lambda request: refusal if request.params.choice == 2 else None
        client = Client({**CHAT, "n": 3, "stream": True})
        await app_for(engine)(scope("/v1/chat/completions"), client.receive, client.send)
        assert client.sent[0]["status"] == 503
        assert not engine.running

    asyncio.run(scenario())


def test_nothing_is_sent_before_the_first_token(tiny_folder: Path) -> None:
    async def scenario() -> None:
        first, go = asyncio.Event(), asyncio.Event()

        async def play(request: Request) -> AsyncIterator[OutputDelta]:
            yield OutputDelta(token_ids=[])
            first.set()
            await go.wait()
            yield OutputDelta(token_ids=[80])
            await asyncio.Event().wait()

        client = Client({**CHAT, "stream": True})
        engine = ScriptedEngine(tiny_folder, play)
        request = scope("/v1/chat/completions")
        call = asyncio.create_task(app_for(engine)(request, client.receive, client.send))
        await first.wait()
        assert not client.sent
        go.set()
        await client.has_news.wait()
        client.gone.set()
        await call

    asyncio.run(scenario())

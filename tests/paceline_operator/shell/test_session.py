"""The HTTP session with the API server, against a real HTTP server of this process."""

import asyncio
from collections.abc import Awaitable, Callable

import kopf
import pytest
from aiohttp import web

from paceline_operator.shell.errors import ApiRefused, ApiUnreachable
from paceline_operator.shell.session import Session
from paceline_operator.testing.loopback import Answer, answering

Script = Callable[[Session, list[str]], Awaitable[None]]


def play(answer: Answer, script: Script, tokens: tuple[str, ...] = ("t1",)) -> None:
    """Run a script against a server that answers everything in one way."""

    async def run() -> None:
        logins: list[str] = []
        async with answering(answer) as port:

            def log_in() -> kopf.ConnectionInfo:
                logins.append(tokens[min(len(logins), len(tokens) - 1)])
                return kopf.ConnectionInfo(server=f"http://127.0.0.1:{port}", token=logins[-1])

            session = Session(log_in)
            try:
                await script(session, logins)
            finally:
                await session.close()

    asyncio.run(asyncio.wait_for(run(), 10))


def test_an_expired_token_is_renewed_once_for_all_who_were_refused() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.headers["Authorization"] != "Bearer t2":
            return web.json_response({"kind": "Status", "reason": "Unauthorized"}, status=401)
        return web.json_response({"kind": "Thing"})

    async def script(session: Session, logins: list[str]) -> None:
        found = await asyncio.gather(*(session.request("GET", "/api") for _ in range(8)))
        assert all(item == {"kind": "Thing"} for item in found)
        assert logins == ["t1", "t2"]

    play(answer, script, ("t1", "t2"))


def test_a_refusal_carries_the_servers_reason_and_words() -> None:
    async def answer(_: web.Request) -> web.Response:
        body = {"kind": "Status", "reason": "Conflict", "message": "has been modified"}
        return web.json_response(body, status=409)

    async def script(session: Session, _: list[str]) -> None:
        with pytest.raises(ApiRefused) as refused:
            await session.request("PUT", "/api/v1/x", body={})
        told = refused.value
        assert (told.code, told.reason, told.message) == (409, "Conflict", "has been modified")

    play(answer, script)


def test_a_server_that_is_short_of_capacity_is_asked_again_after_the_time_it_names() -> None:
    asked = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked < 3:
            return web.json_response({}, status=429, headers={"Retry-After": "0"})
        return web.json_response({"asked": asked})

    async def script(session: Session, _: list[str]) -> None:
        assert await session.request("GET", "/api") == {"asked": 3}

    play(answer, script)


def test_a_connection_that_breaks_is_unreachable_not_refused() -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def script(session: Session, _: list[str]) -> None:
        with pytest.raises(ApiUnreachable, match="PATCH /api/v1/x"):
            await session.request("PATCH", "/api/v1/x", body={})

    play(answer, script)


def test_an_answer_that_is_no_json_object_is_refused_with_its_text() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="<html>a proxy's page</html>")

    async def script(session: Session, _: list[str]) -> None:
        with pytest.raises(ApiRefused, match="a proxy's page"):
            await session.request("GET", "/api")

    play(answer, script)

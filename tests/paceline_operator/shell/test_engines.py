"""The client of the admin port, against a server of this process."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from aiohttp import web

from paceline_operator.shell.engines import Engines, PodNetwork
from paceline_operator.shell.errors import EngineRefused, EngineUnreachable
from paceline_operator.testing.loopback import Loopback, answering

POD = {"metadata": {"name": "demo-1", "uid": "u1"}, "status": {"podIP": "10.0.0.9"}}
STATUS = {
    "ready": True,
    "live": True,
    "model": "demo",
    "phase": "Ready",
    "drain": {"phase": "Serving"},
    "revision": 3,
    "capacity": {"kvTokens": 1600},
}


def play(answers: Mapping[str, Any], script: Callable[[Engines], Awaitable[None]]) -> list[str]:
    """Run a script against an engine with these answers; returns the tokens it was shown."""
    shown: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        shown.append(request.headers.get("Authorization", ""))
        if request.headers.get("Authorization") == "Bearer new":
            return web.json_response({"error": {"message": "send the token"}}, status=401)
        code, body = answers[f"{request.method} {request.path}"]
        return web.json_response(body, status=code)

    async def run() -> None:
        async with answering(answer) as port:
            engines = Engines(Loopback(port), lambda: 5.0)
            try:
                await script(engines)
            finally:
                await engines.close()

    asyncio.run(asyncio.wait_for(run(), 10))
    return shown


def test_a_reading_has_status_and_settings_and_counts_requests_only_when_asked() -> None:
    settings = {"settings": {"maxNumSeqs": 4}, "revision": 3, "generation": 1}
    answers = {
        "GET /v1/paceline/status": (200, STATUS),
        "GET /v1/paceline/settings": (200, settings),
        "GET /v1/paceline/requests": (200, {"requests": [{}, {}]}),
    }

    async def script(engines: Engines) -> None:
        read = await engines.read(POD, ("old",))
        assert (read.is_reachable, read.is_ready, read.model) == (True, True, "demo")
        assert (read.revision, read.settings, read.num_requests) == (3, {"maxNumSeqs": 4}, None)
        assert read.capacity == {"kvTokens": 1600}
        assert (read.pod_uid, read.read_at) == ("u1", 5.0)
        assert (await engines.read(POD, ("old",), with_requests=True)).num_requests == 2

    play(answers, script)


def test_an_engine_that_still_loads_has_no_settings() -> None:
    loading = {"ready": False, "live": True, "phase": "Loading", "progress": 0.5}

    async def script(engines: Engines) -> None:
        read = await engines.read(POD, ("old",))
        assert (read.is_reachable, read.phase, read.progress) == (True, "Loading", 0.5)
        assert (read.revision, read.settings) == (None, {})

    play({"GET /v1/paceline/status": (200, loading)}, script)


def test_an_older_pod_that_knows_the_older_token_alone_is_asked_with_it() -> None:
    settings = (200, {"settings": {}, "revision": 3, "generation": 0})

    async def script(engines: Engines) -> None:
        assert (await engines.read(POD, ("new", "old"))).is_reachable

    answers = {"GET /v1/paceline/status": (200, STATUS), "GET /v1/paceline/settings": settings}
    shown = play(answers, script)
    assert shown[:2] == ["Bearer new", "Bearer old"]


def test_no_answer_and_a_refused_token_are_readings() -> None:
    async def script(engines: Engines) -> None:
        refused = await engines.read(POD, ("new",))
        assert not refused.is_reachable
        assert "401: send the token" in refused.message

    play({}, script)

    async def alone() -> None:
        engines = Engines(Loopback(9), lambda: 5.0)
        read = await engines.read(POD, ("old",))
        assert not read.is_reachable
        with pytest.raises(EngineUnreachable):
            await engines.drain(POD, ("old",), 1.0)
        await engines.close()

    asyncio.run(alone())


def test_a_refused_setting_carries_the_engines_words() -> None:
    refusal = (409, {"error": {"message": "maxNumSeqs is above its boot maximum"}})

    async def script(engines: Engines) -> None:
        with pytest.raises(EngineRefused, match="above its boot maximum") as refused:
            await engines.patch_settings(POD, ("old",), {"maxNumSeqs": 9}, 4)
        assert refused.value.code == 409

    play({"PATCH /v1/paceline/settings": refusal}, script)


def test_a_stock_vllm_says_its_model_at_the_public_port() -> None:
    async def script(engines: Engines) -> None:
        read = await engines.read_vllm(POD)
        assert (read.is_ready, read.model, read.revision) == (True, "llama", None)

    play({"GET /v1/models": (200, {"data": [{"id": "llama"}]})}, script)


def test_addresses_of_pods_are_written_as_urls_want_them() -> None:
    six = {"status": {"podIP": "fd00::9"}}
    assert asyncio.run(PodNetwork().address(POD, 8001)) == "10.0.0.9:8001"
    assert asyncio.run(PodNetwork().address(six, 8001)) == "[fd00::9]:8001"

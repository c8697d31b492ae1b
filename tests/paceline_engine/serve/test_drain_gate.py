import asyncio

import httpx
import pytest

from paceline_engine.serve.drain import Drain
from paceline_engine.serve.drain_gate import DrainGate, Receive, Scope, Send
from paceline_engine.serve.openai.errors import unavailable


class SlowApp:
    """Answers when the test says."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.has_begun.set()
        await self.may_answer.wait()
        headers = [(b"connection", b"keep-alive")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"done"})


def client_of(gate: DrainGate) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://test")


def test_every_response_closes_its_connection_from_phase_1_on() -> None:
    async def go() -> None:
        drain = Drain(shutdown_timeout_s=1.0)
        async with client_of(DrainGate(SlowApp(), drain)) as client:
            assert (await client.get("/v1/models")).headers["connection"] == "keep-alive"
            drain.post(0.0, propagation_s=5.0)
            for answer in (await client.get("/v1/models"), await client.post("/v1/completions")):
                assert answer.status_code == 200
                assert answer.headers.get_list("connection") == ["close"]

    asyncio.run(go())


def test_phase_2_refuses_new_work_and_answers_the_rest() -> None:
    async def go() -> None:
        drain = Drain(shutdown_timeout_s=1.0)
        drain.terminate(0.0)
        async with client_of(DrainGate(SlowApp(), drain)) as client:
            refused = await client.post("/v1/chat/completions")
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["connection"] == "close"
            error = refused.json()["error"]
            assert error | {"message": ""} == unavailable("").body()["error"] | {"code": "draining"}
            assert (await client.get("/health/live")).status_code == 200

    asyncio.run(go())


def test_open_requests_are_counted_until_their_answer_is_sent() -> None:
    async def go() -> None:
        app = SlowApp()
        app.may_answer.clear()
        gate = DrainGate(app, Drain(shutdown_timeout_s=1.0))
        async with client_of(gate) as client:
            running = asyncio.create_task(client.post("/v1/completions"))
            await app.has_begun.wait()
            assert (gate.num_open, gate.idle.is_set()) == (1, False)
            app.may_answer.set()
            await running
        assert (gate.num_open, gate.idle.is_set()) == (0, True)

    asyncio.run(go())


def test_a_request_that_fails_is_not_counted_for_ever() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("broken")

    async def go() -> None:
        gate = DrainGate(failing, Drain(shutdown_timeout_s=1.0))
        async with client_of(gate) as client:
            with pytest.raises(RuntimeError, match="broken"):
                await client.post("/v1/completions")
        assert gate.num_open == 0

    asyncio.run(go())

"""The proxy before the replicas, with real servers behind and before it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from paceline.proxy import Proxy
from paceline.replicas import Replica, Replicas
from paceline_engine.serve.http_stream import ResponseStream
from paceline_engine.testing.loop_server import Receive, Scope, Send, serving_here

pytestmark = pytest.mark.slow  # each test starts and ends two to four real servers

DEADLINE_S = 10.0


class Backend:
    """Streams one event, then waits for the test before it goes on."""

    def __init__(self) -> None:
        self.is_ready = True
        self.num_started = 0
        self.targets: list[str] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[bytes, bytes]] = []
        self.go_on = asyncio.Event()
        self.aborted = asyncio.Event()
        self.status = 200
        self.metrics = b'# TYPE n gauge\nn{engine="0"} 1\n'

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/health/ready":
            await _whole(send, 200 if self.is_ready else 503, b"{}")
        elif scope["path"] == "/metrics":
            await _whole(send, 200, self.metrics)
        elif scope["path"] == "/v1/completions":
            await self._complete(scope, receive, send)
        else:
            await _whole(send, 404, b'{"error": {"message": "no such page"}}')

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_started += 1
        self.targets.append(scope["path"] + "?" + scope["query_string"].decode())
        self.headers.append(dict(scope["headers"]))
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.bodies.append(body)
        if self.status != 200:
            await _whole(send, self.status, b'{"error": {"message": "full"}}', b"7")
            return
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        gone = asyncio.create_task(receive())
        go_on = asyncio.create_task(self.go_on.wait())
        await asyncio.wait({gone, go_on}, return_when=asyncio.FIRST_COMPLETED)
        go_on.cancel()
        if gone.done():
            self.aborted.set()
            return
        gone.cancel()
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _whole(send: Send, status: int, body: bytes, retry_after: bytes = b"") -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    if retry_after:
        headers.append((b"retry-after", retry_after))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def proxied(*backends: Any) -> AsyncIterator[tuple[str, Replicas]]:
    """Real servers for the backends, and the proxy before them."""
    async with AsyncExitStack() as stack:
        replicas = []
        for index, backend in enumerate(backends):
            parts = urlsplit(await stack.enter_async_context(serving_here(backend)))
            replicas.append(Replica(index=index, host="127.0.0.1", port=parts.port or 0))
        owner = Replicas(replicas)
        await owner.probe()
        yield await stack.enter_async_context(serving_here(Proxy(owner))), owner


async def post(url: str, body: bytes = b"{}") -> ResponseStream:
    stream = await ResponseStream.open("POST", url + "/v1/completions", body=body)
    await stream.head()
    return stream


async def all_released(replicas: Replicas) -> None:
    while any(replica.num_outstanding for replica in replicas.all):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0)


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


def test_events_are_passed_on_before_the_answer_ends() -> None:
    async def test() -> None:
        backend = Backend()
        async with proxied(backend) as (url, _):
            stream = await post(url + "", b'{"prompt": [1, 2]}')
            pieces = stream.pieces()
            assert await anext(pieces) == b"data: 1\n\n"
            assert not backend.go_on.is_set()
            backend.go_on.set()
            assert [piece async for piece in pieces] == [b"data: [DONE]\n\n"]
        assert backend.bodies == [b'{"prompt": [1, 2]}']

    run(test())


@pytest.mark.parametrize(
    ("request_line", "told"),
    [(b"POST /v1/completions", b"keep it open until the answer"), (b"GET /nowhere", b"no such")],
)
def test_a_client_that_closes_its_sending_half_is_answered(
    request_line: bytes, told: bytes
) -> None:
    async def test() -> None:
        async with proxied(Backend()) as (url, replicas):
            parts = urlsplit(url)
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(request_line + b" HTTP/1.1\r\nHost: h\r\n\r\n")
            writer.write_eof()
            assert told in await reader.read()
            await all_released(replicas)
            assert replicas.all[0].is_ready
            writer.close()

    run(test())


def test_the_target_and_the_headers_of_a_client_reach_the_replica() -> None:
    async def test() -> None:
        backend = Backend()
        backend.go_on.set()
        async with proxied(backend) as (url, _):
            stream = await ResponseStream.open(
                "POST",
                url + "/v1/completions?a=b%20c",
                headers=[(b"authorization", b"Bearer k"), (b"x-request-id", b"r1")],
                body=b"{}",
            )
            await stream.head()
            await stream.body()
        assert backend.targets == ["/v1/completions?a=b%20c"]
        assert backend.headers[0][b"authorization"] == b"Bearer k"
        assert backend.headers[0][b"x-request-id"] == b"r1"
        assert backend.headers[0][b"x-forwarded-for"] == b"127.0.0.1"

    run(test())


def test_a_client_that_goes_away_aborts_its_request_at_the_replica() -> None:
    async def test() -> None:
        backend = Backend()
        async with proxied(backend) as (url, replicas):
            stream = await post(url)
            assert await anext(stream.pieces()) == b"data: 1\n\n"
            stream.abort()
            await backend.aborted.wait()
            await all_released(replicas)

    run(test())


def test_each_request_goes_to_the_replica_with_fewest_outstanding() -> None:
    async def test() -> None:
        slow, quick = Backend(), Backend()
        async with proxied(slow, quick) as (url, replicas):
            held = await post(url)
            quick.go_on.set()
            for _ in range(3):
                await (await post(url)).body()
            assert (slow.num_started, quick.num_started) == (1, 3)
            assert replicas.all[0].num_outstanding == 1
            slow.go_on.set()
            await held.body()
            await all_released(replicas)

    run(test())


def test_equally_busy_replicas_take_turns() -> None:
    async def test() -> None:
        backends = [Backend(), Backend(), Backend()]
        for backend in backends:
            backend.go_on.set()
        async with proxied(*backends) as (url, _):
            for _ in range(6):
                await (await post(url)).body()
        assert [backend.num_started for backend in backends] == [2, 2, 2]

    run(test())


def test_a_draining_replica_is_skipped() -> None:
    async def test() -> None:
        draining, serving_one = Backend(), Backend()
        draining.is_ready = False
        serving_one.go_on.set()
        async with proxied(draining, serving_one) as (url, _):
            for _ in range(3):
                await (await post(url)).body()
        assert (draining.num_started, serving_one.num_started) == (0, 3)

    run(test())


def test_a_replica_that_refuses_connections_is_passed_over_at_once() -> None:
    async def test() -> None:
        backend = Backend()
        backend.go_on.set()
        async with proxied(backend) as (url, replicas):
            dead = Replica(index=1, host="127.0.0.1", port=1, is_ready=True)
            replicas.all = (dead, *replicas.all)
            stream = await post(url)
            assert stream.status == 200
            assert await stream.body() == b"data: 1\n\ndata: [DONE]\n\n"
            assert not dead.is_ready
            assert dead.num_outstanding == 0

    run(test())


def test_without_a_ready_replica_the_answer_is_503_with_retry_after() -> None:
    async def test() -> None:
        backend = Backend()
        backend.is_ready = False
        async with proxied(backend) as (url, _):
            stream = await post(url)
            error = json.loads(await stream.body())["error"]
        assert (stream.status, stream.header(b"retry-after")) == (503, b"2")
        assert error["code"] == "no_replica_ready"
        assert set(error) == {"message", "type", "param", "code"}

    run(test())


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_of_the_replica_is_passed_through(status: int) -> None:
    async def test() -> None:
        backend, other = Backend(), Backend()
        backend.status = other.status = status
        async with proxied(backend, other) as (url, _):
            stream = await post(url)
            assert json.loads(await stream.body())["error"]["message"] == "full"
        assert (stream.status, stream.header(b"retry-after")) == (status, b"7")
        assert backend.num_started + other.num_started == 1

    run(test())


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (
            (
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n"
            ),
            200,
            "engine_gone",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", 502, "engine_gone"),
        (b"", 502, "engine_gone"),
        (b"no HTTP at all\r\n\r\n", 502, "engine_gone"),
    ],
    ids=["in mid-stream", "in mid-body", "before the answer", "speaks no HTTP"],
)
def test_a_replica_that_dies_gives_an_error_to_its_client(
    answer: bytes, status: int, code: str
) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(die, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        replica = Replica(index=0, host="127.0.0.1", port=port, is_ready=True)
        async with server, serving_here(Proxy(Replicas([replica]))) as url:
            stream = await post(url)
            body = await stream.body()
        assert stream.status == status
        if status == 200:
            first, error, done = body.split(b"\n\n")[:3]
            assert (first, done) == (b"data: 1", b"data: [DONE]")
            body = error.removeprefix(b"data: ")
        assert json.loads(body)["error"]["code"] == code
        assert not replica.is_ready

    run(test())


def test_metrics_of_all_replicas_are_one_page() -> None:
    async def test() -> None:
        async with proxied(Backend(), Backend()) as (url, _):
            stream = await ResponseStream.open("GET", url + "/metrics")
            await stream.head()
            assert await stream.body() == b'# TYPE n gauge\nn{engine="0"} 1\nn{engine="1"} 1\n'

    run(test())


def test_a_key_for_metrics_is_asked_for_by_the_replicas() -> None:
    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        is_ok = dict(scope["headers"]).get(b"authorization") == b"Bearer k"
        await _whole(send, 200 if is_ok else 401, b"n 1\n" if is_ok else b"{}")

    async def ask(url: str, *headers: tuple[bytes, bytes]) -> tuple[int, bytes]:
        stream = await ResponseStream.open("GET", url + "/metrics", headers=headers)
        await stream.head()
        return stream.status, await stream.body()

    async def test() -> None:
        async with proxied(guarded, guarded) as (url, _):
            assert await ask(url) == (401, b"{}")
            with_key = await ask(url, (b"authorization", b"Bearer k"))
            assert with_key == (200, b'n{engine="0"} 1\nn{engine="1"} 1\n')

    run(test())


def test_health_says_how_many_replicas_are_ready_and_when_it_drains() -> None:
    async def ask(url: str, path: str) -> tuple[int, str]:
        stream = await ResponseStream.open("GET", url + path)
        await stream.head()
        return stream.status, json.loads(await stream.body())["message"]

    async def test() -> None:
        ready, loading = Backend(), Backend()
        loading.is_ready = False
        async with proxied(ready, loading) as (url, replicas):
            assert await ask(url, "/health/ready") == (200, "1 of 2 replicas are ready")
            replicas.is_draining = True
            assert (await ask(url, "/health/ready"))[0] == 503
            assert (await ask(url, "/health"))[0] == 200
            refused = await post(url)
            assert refused.status == 503
            assert json.loads(await refused.body())["error"]["code"] == "draining"

    run(test())


def test_a_body_beyond_the_limit_is_refused_with_both_numbers() -> None:
    async def test() -> None:
        backend = Backend()
        async with proxied(backend) as (url, _):
            stream = await post(url, b"x" * (64 * 2**20 + 1))
            assert stream.status == 413
            assert (
                "at most 64 MiB, got 64.0 MiB"
                in json.loads(await stream.body())["error"]["message"]
            )
        assert backend.num_started == 0

    run(test())

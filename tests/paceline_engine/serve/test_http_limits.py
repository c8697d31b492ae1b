"""What clients who do not keep to HTTP, or to its pace, get: over real sockets."""

import asyncio
import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from paceline_engine.serve import http_limits
from paceline_engine.serve.http_limits import MAX_HEAD_BYTES, MAX_HEADERS, LimitedHttp

GET = b"GET / HTTP/1.1\r\nHost: test\r\n"


class Hasty(LimitedHttp):
    request_timeout_s = 0.2
    send_timeout_s = 0.2


class Patient(LimitedHttp):
    send_timeout_s = 1.0


async def count(_scope: Any, receive: Any, send: Any) -> None:
    """Says how long the body was; some paths have answers of their own."""
    if _scope["path"] == "/large":
        await answer_largely(send)
        return
    if _scope["path"] == "/attentive":
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"told"})
        return
    num_bytes = 0
    while True:
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    body = str(num_bytes).encode()
    head = [(b"content-length", str(len(body)).encode())]
    if _scope["path"] == "/slow":
        await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


PIECE = b"a" * 65_536
NUM_PIECES = 256


async def answer_largely(send: Any) -> None:
    """More than the system holds for a connection."""
    head = [(b"content-length", str(len(PIECE) * NUM_PIECES).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    for left in reversed(range(NUM_PIECES)):
        await send({"type": "http.response.body", "body": PIECE, "more_body": left > 0})


async def answer_at_once(_scope: Any, _receive: Any, send: Any) -> None:
    """The same answer in one go: it is computed long before it is sent."""
    whole = PIECE * NUM_PIECES
    head = [(b"content-length", str(len(whole)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": whole})


@contextmanager
def listening(http: type[LimitedHttp] = LimitedHttp, app: Any = count) -> Iterator[tuple[str, int]]:
    config = uvicorn.Config(app, http=http, log_config=None, ws="none", lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def talk(address: tuple[str, int], *pieces: bytes) -> tuple[str, bytes]:
    """Send and read until the server closes; gives the status line and the body."""
    with socket.create_connection(address, timeout=10) as connection:
        for piece in pieces:
            try:
                connection.sendall(piece)
            except (BrokenPipeError, ConnectionResetError):
                break
        data = bytearray()
        try:
            while part := connection.recv(65_536):
                data += part
        except ConnectionResetError:
            pass
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0].decode(), body


def code_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "pieces",
    [
        [GET, b"X-Long: ", *[b"a" * 8192] * (MAX_HEAD_BYTES // 8192)],
        [b"GET /" + b"a" * (MAX_HEAD_BYTES + 1)],
        [GET, *[b"X: y\r\n"] * (MAX_HEADERS + 1)],
    ],
    ids=["a header without an end", "a path without an end", "very many headers"],
)
def test_a_head_without_measure_is_refused(pieces: list[bytes]) -> None:
    with listening() as address:
        status, body = talk(address, *pieces)
    assert status == "HTTP/1.1 431 Request Header Fields Too Large"
    assert code_of(body) == "headers_too_large"


@pytest.mark.slow
def test_a_large_body_counts_as_no_head_whatever_the_pieces() -> None:
    size = 3 * MAX_HEAD_BYTES
    head = b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size
    with listening() as address:
        assert talk(address, head + b"a" * size) == ("HTTP/1.1 200 OK", str(size).encode())
        assert talk(address, head, b"a" * size)[1] == str(size).encode()
        requests = b"POST / HTTP/1.1\r\nContent-Length: 40000\r\n\r\n" + b"a" * 40_000
        _, answers = talk(address, requests * 3 + GET + b"Connection: close\r\n\r\n")
        assert answers.count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_gets_an_error_object(sent: bytes) -> None:
    with listening() as address:
        status, body = talk(address, sent)
    assert status == "HTTP/1.1 400 Bad Request"
    assert code_of(body) == "invalid_http"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", ""),
        (GET, "HTTP/1.1 408 Request Timeout"),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc",
            "HTTP/1.1 408 Request Timeout",
        ),
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_connection_without_a_whole_request_is_closed_in_time(sent: bytes, status: str) -> None:
    with listening(Hasty) as address:
        assert talk(address, sent)[0] == status


@pytest.mark.slow
def test_line_breaks_do_not_keep_a_connection_open() -> None:
    with (
        listening(Hasty) as address,
        socket.create_connection(address, timeout=3) as connection,
    ):
        connection.sendall(GET + b"\r\n")
        while not connection.recv(65_536).endswith(b"0"):
            pass
        connection.sendall(b"\r\n")
        assert b"408" in connection.recv(65_536)  # within 3 s; kept-alive ones have 5


@pytest.mark.slow
def test_the_time_limit_is_not_one_of_the_answer() -> None:
    slow = b"GET /slow HTTP/1.1\r\n\r\n"
    with listening(Hasty) as address:
        began = time.monotonic()
        status, rest = talk(address, slow + GET + b"Connection: close\r\n\r\n")
        assert time.monotonic() - began >= 0.5
    assert status == "HTTP/1.1 200 OK"
    assert rest.count(b"HTTP/1.1 200 OK") == 1


def until_closed(connection: socket.socket) -> int:
    """Read until the server closes or resets; gives the number of bytes."""
    num_bytes = 0
    try:
        while part := connection.recv(1 << 20):
            num_bytes += len(part)
    except ConnectionResetError:
        pass
    return num_bytes


def closings(of: type[LimitedHttp]) -> tuple[type[LimitedHttp], threading.Event]:
    """The protocol, and what is set once it has lost a connection."""
    closed = threading.Event()

    class Watched(of):  # type: ignore[misc, valid-type]
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            closed.set()

    return Watched, closed


@pytest.mark.slow
@pytest.mark.parametrize("app", [count, answer_at_once], ids=["in pieces", "in one go"])
@pytest.mark.parametrize("keep_alive", [b"keep-alive", b"close"])
def test_a_client_that_never_reads_its_answer_is_let_go(app: Any, keep_alive: bytes) -> None:
    watched, closed = closings(Hasty)
    with listening(watched, app) as address, socket.create_connection(address) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nConnection: " + keep_alive + b"\r\n\r\n")
        assert closed.wait(5)
        connection.settimeout(5)
        assert until_closed(connection) < len(PIECE) * NUM_PIECES


@pytest.mark.slow
def test_a_client_that_reads_slowly_gets_its_whole_answer() -> None:
    with listening(Patient, answer_at_once) as address, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.settimeout(5)
        connection.connect(address)
        connection.sendall(b"GET /large HTTP/1.1\r\nConnection: close\r\n\r\n")
        num_bytes, began = 0, time.monotonic()
        while time.monotonic() - began < 2 * Patient.send_timeout_s:
            num_bytes += len(connection.recv(65_536))
            time.sleep(Patient.send_timeout_s / 50)  # a slow reader is what is tested
        assert num_bytes + until_closed(connection) > len(PIECE) * NUM_PIECES


@pytest.mark.slow
@pytest.mark.parametrize("path", [b"/", b"/slow"])
def test_a_client_that_closes_its_sending_half_gets_its_answer(path: bytes) -> None:
    with listening() as address, socket.create_connection(address, timeout=5) as connection:
        connection.sendall(b"POST " + path + b" HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
        connection.shutdown(socket.SHUT_WR)
        data = b""
        while part := connection.recv(65_536):
            data += part
    assert data.startswith(b"HTTP/1.1 200 OK")
    assert path == b"/" or b"connection: close" in data.lower()
    assert data.endswith(b"\r\n\r\n3")


@pytest.mark.slow
def test_an_app_that_listens_for_its_client_hears_of_a_closed_half_and_may_answer() -> None:
    with listening() as address, socket.create_connection(address, timeout=5) as connection:
        connection.sendall(b"GET /attentive HTTP/1.1\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        data = b""
        while part := connection.recv(65_536):
            data += part
    assert data.startswith(b"HTTP/1.1 400")
    assert b"told" in data


@pytest.mark.slow
def test_half_a_request_and_a_closed_half_are_no_request() -> None:
    with listening() as address, socket.create_connection(address, timeout=5) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(65_536) == b""


def test_the_limit_of_open_files_is_as_high_as_it_may_be() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
    try:
        http_limits.raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

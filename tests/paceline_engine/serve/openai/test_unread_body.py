"""Answers to requests whose body was not read, over a real socket: a reset would lose them."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.openai.app import create_public_app
from paceline_engine.serve.openai.middleware import MAX_BODY_BYTES
from paceline_engine.testing.scripted_engine import ScriptedEngine, saying

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
CHUNK = b"%x\r\n%b\r\n" % (65_536, b" " * 65_536)


@contextmanager
def connected(folder: Path) -> Iterator[socket.socket]:
    app = create_public_app(
        ScriptedEngine(folder, saying([80])),
        ServeConfig(model="tiny"),
        Drain(shutdown_timeout_s=1.0),
    )
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            with socket.create_connection(listener.getsockname(), timeout=20) as connection:
                yield connection
        finally:
            server.should_exit = True
            thread.join()


def read_all(connection: socket.socket) -> bytes:
    data = bytearray()
    while part := connection.recv(65_536):
        data += part
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_client_that_sends_all_before_it_reads_gets_its_413(
    tiny_folder: Path, *, is_chunked: bool
) -> None:
    num_chunks = 3 * MAX_BODY_BYTES // 65_536
    with connected(tiny_folder) as connection:
        if is_chunked:
            connection.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
            for _ in range(num_chunks):
                connection.sendall(CHUNK)
            connection.sendall(b"0\r\n\r\n")
        else:
            connection.sendall(f"{HEAD}Content-Length: {num_chunks * 65_536}\r\n\r\n".encode())
            for _ in range(num_chunks):
                connection.sendall(b" " * 65_536)
        answer = read_all(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert json.loads(body)["error"]["code"] == "body_too_large"


@pytest.mark.slow
def test_a_client_that_waits_to_be_asked_for_its_body_is_answered_at_once(
    tiny_folder: Path,
) -> None:
    with connected(tiny_folder) as connection:
        length = 3 * MAX_BODY_BYTES
        connection.sendall(
            f"{HEAD}Content-Length: {length}\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert read_all(connection).startswith(b"HTTP/1.1 413 ")

"""The endpoint of a run: its socket, and the proxy that serves on it before several replicas."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from paceline.errors import CommandError
from paceline.proxy import Proxy
from paceline.replicas import Replicas
from paceline_engine.serve.http_limits import LimitedHttp

_HOST = "127.0.0.1"
_BACKLOG = 2048


def listening(port: int) -> socket.socket:
    """The endpoint's port, ours from here on: two runs that start together must not both begin.

    Raises:
        CommandError: somebody else has it.
    """
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_HOST, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise CommandError(
            f"port {port} of {_HOST} must be free, got: {error.strerror}; stop the other "
            "program or choose another port with --port (make demo PORT=...)"
        ) from error
    return listener


@asynccontextmanager
async def serving_proxy(replicas: Replicas, listener: socket.socket) -> AsyncIterator[None]:
    """The proxy on the endpoint's socket, for as long as the block runs."""
    config = uvicorn.Config(
        Proxy(replicas),
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        http=LimitedHttp,
        timeout_graceful_shutdown=2,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    try:
        yield
    finally:
        await server.shutdown(sockets=[listener])

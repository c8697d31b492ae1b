"""A real HTTP server of this process, which a test answers for; every pod can be found there."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from paceline_operator.render.names import ADMIN_PORT, HTTP_PORT

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[int]:
    """Answer every request that comes during the block; gives the port.

    Answers that nobody waits for any longer hold the end up for a tenth of a second at most.
    """
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port: int = runner.addresses[0][1]
        yield port
    finally:
        await runner.cleanup()


class Loopback:
    """An `Access` by which every port of every pod is one port of this process."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def address(self, pod: Mapping[str, Any], port: int) -> str:
        """Where a port of a pod is reached."""
        assert pod
        assert port in {HTTP_PORT, ADMIN_PORT}, port
        return f"127.0.0.1:{self._port}"

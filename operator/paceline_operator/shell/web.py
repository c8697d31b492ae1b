"""`/healthz`, `/readyz` and `/metrics` of the operator."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from paceline_crds import routes
from paceline_operator.shell.errors import StartRefused


@asynccontextmanager
async def serving(
    host: str,
    port: int,
    *,
    is_alive: Callable[[], bool],
    is_ready: Callable[[], bool],
    metrics: Callable[[], bytes],
) -> AsyncIterator[int]:
    """Serve during the block; gives the port.

    Raises:
        StartRefused: the address cannot be had.
    """

    def told(holds: bool, words: str) -> web.Response:
        return web.Response(status=200 if holds else 503, text="ok\n" if holds else words)

    async def healthz(_: web.Request) -> web.Response:
        return told(is_alive(), "work on a deployment hangs\n")

    async def readyz(_: web.Request) -> web.Response:
        return told(is_ready(), "the first lists are not done\n")

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get(routes.METRICS, get_metrics),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise StartRefused(f"port {port} of {host} cannot be had: {error}") from error
        bound: int = runner.addresses[0][1]
        yield bound
    finally:
        await runner.cleanup()

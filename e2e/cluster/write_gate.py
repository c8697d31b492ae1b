"""A proxy between an operator and the real API server that acts at single writes, and at watches.

It counts the operator's writes and, at those that a journey names, kills it before the write is
passed on, or after it was done and before its answer is given, or holds the write until a journey
lets it go. Events and Leases do not count: nothing is decided by them. Watches can be broken off,
and answered as the server answers a watch whose versions have expired.
"""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path

import aiohttp
from aiohttp import web

from cluster.client import Cluster
from cluster.wait import until

_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_UNCOUNTED = ("/events", "/leases", "/selfsubjectaccessreviews")
_HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "keep-alive", "host", "content-length"})
_MAX_BODY = 16 << 20
_PAUSE_S = 0.1
_EXPIRED = {
    "type": "ERROR",
    "object": {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Expired",
        "message": "too old resource version",
        "code": 410,
    },
}


class When(StrEnum):
    """Where in a write its operator is killed, or that the write is held."""

    BEFORE = "before"
    AFTER = "after"
    HELD = "held"


class WriteGate:
    """One running proxy.

    Attributes:
        kubeconfig: with which an operator goes through it.
        writes: what passed or would have, as `METHOD path`, in order.
        kill: ends the operator for good; called from the proxy's own thread.
        rule: number of a write, counted from 1 -> what happens there, None to let it pass.
        held: writes that are held, or were.
        codes_of_held: what the server said to them once they were let go.
        num_broken_watches: watches that were broken off or refused.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.writes: list[str] = []
        self.num_kills = 0
        self.kill: Callable[[], None] = lambda: None
        self.rule: Callable[[int], When | None] = lambda _: None
        self.held: list[str] = []
        self.codes_of_held: list[int] = []
        self.num_broken_watches = 0
        self._upstream = ""
        self._let_go = threading.Event()
        self._are_watches_broken = threading.Event()

    @classmethod
    @contextlib.contextmanager
    def running(cls, cluster: Cluster, folder: Path) -> Iterator["WriteGate"]:
        """Serve during the block, in the cluster's network."""
        made = cls(folder / "gate.kubeconfig")
        log = folder / "kubectl-proxy.log"
        command = ["kubectl", "proxy", "--port=0", "--reject-methods=^$", "--accept-paths=.*"]
        with cluster.process(command, log):
            port = until("kubectl proxy serves", lambda: _port_in(log), timeout_s=30)
            made._upstream = f"http://127.0.0.1:{port}"
            with cluster.network(), socket.create_server(("127.0.0.1", 0)) as listener:
                made._write_kubeconfig(listener.getsockname()[1])
                loop, ended = asyncio.new_event_loop(), asyncio.Event()
                serving = made._serve(listener, ended)
                thread = threading.Thread(target=loop.run_until_complete, args=(serving,))
                thread.start()
                try:
                    yield made
                finally:
                    loop.call_soon_threadsafe(ended.set)
                    thread.join(30)
                    loop.close()

    def let_go(self) -> None:
        """Pass on what is held, and what comes later at once."""
        self._let_go.set()

    @contextlib.contextmanager
    def broken_watches(self) -> Iterator[None]:
        """During the block watches end, and new ones are told that their versions have expired."""
        self._are_watches_broken.set()
        try:
            yield
        finally:
            self._are_watches_broken.clear()

    def _write_kubeconfig(self, port: int) -> None:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "gate", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "anybody", "user": {"token": "none"}}],
            "contexts": [{"name": "gate", "context": {"cluster": "gate", "user": "anybody"}}],
            "current-context": "gate",
        }
        self.kubeconfig.write_text(json.dumps(document))

    async def _serve(self, listener: socket.socket, ended: asyncio.Event) -> None:
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._pass)
        # An operator that was killed takes its watches with it: they would stay open for minutes,
        # and after a dozen kills no connection would be left for the next one's lists.
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        async with aiohttp.ClientSession(
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0),
        ) as self._session:
            await runner.setup()
            await web.SockSite(runner, listener).start()
            await ended.wait()
            await runner.cleanup()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        is_watch = request.query.get("watch") in {"1", "true"}
        if is_watch and self._are_watches_broken.is_set():
            self.num_broken_watches += 1
            await asyncio.sleep(_PAUSE_S)  # as a server that answers no faster
            return web.json_response(_EXPIRED)
        when = self._count(request)
        if when is When.BEFORE:
            self._kill()
            return web.Response(status=503)
        if when is When.HELD:
            self.held.append(self.writes[-1])
            while not self._let_go.is_set():  # noqa: ASYNC110 - set by a journey's own thread
                await asyncio.sleep(_PAUSE_S)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _HOP_BY_HOP | {"authorization"}
        }
        async with self._session.request(
            request.method,
            self._upstream + str(request.rel_url),
            data=await request.read() or None,
            headers=headers,
            skip_auto_headers=("Content-Type",),
        ) as answer:
            if when is When.AFTER:
                await answer.read()
                self._kill()
                return web.Response(status=503)
            if when is When.HELD:
                self.codes_of_held.append(answer.status)
            kept = {n: v for n, v in answer.headers.items() if n.lower() not in _HOP_BY_HOP}
            passed = web.StreamResponse(status=answer.status, headers=kept)
            await passed.prepare(request)
            await (self._pass_watch if is_watch else _pass_whole)(answer, passed)
            return passed

    async def _pass_watch(self, answer: aiohttp.ClientResponse, passed: web.StreamResponse) -> None:
        """Pass events on until watches are to break."""
        reading = asyncio.ensure_future(answer.content.readany())
        try:
            while not self._are_watches_broken.is_set():
                await asyncio.wait([reading], timeout=_PAUSE_S)
                if not reading.done():
                    continue
                if not (part := reading.result()):
                    return
                await passed.write(part)
                reading = asyncio.ensure_future(answer.content.readany())
        finally:
            reading.cancel()
        self.num_broken_watches += 1

    def _count(self, request: web.Request) -> When | None:
        path = request.rel_url.path
        if request.method not in _WRITES or any(word in path for word in _UNCOUNTED):
            return None
        self.writes.append(f"{request.method} {path}")
        return self.rule(len(self.writes))

    def _kill(self) -> None:
        self.num_kills += 1
        self.kill()


async def _pass_whole(answer: aiohttp.ClientResponse, passed: web.StreamResponse) -> None:
    async for part in answer.content.iter_any():
        await passed.write(part)


def _port_in(log: Path) -> int | None:
    text = log.read_text() if log.exists() else ""
    _, found, rest = text.partition("Starting to serve on 127.0.0.1:")
    return int(rest.split()[0]) if found else None

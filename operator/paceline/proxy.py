"""A streaming reverse proxy before the replicas of one deployment on this machine.

Each request goes to the ready replica with the fewest outstanding ones. What the replica sends is
passed on piece by piece, its 429 and 503 included; a client that goes away closes the replica's
connection, which aborts the request there. A request that has reached a replica is never sent to a
second one: it may be what ended the first.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from paceline import metrics_merge
from paceline.replicas import Replica, Replicas, get
from paceline_crds import routes
from paceline_engine.serve.error_types import error_type
from paceline_engine.serve.http_limits import CLIENT_CLOSED
from paceline_engine.serve.http_stream import AnswerCut, ResponseStream, end_to_end

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
HeaderList = list[tuple[bytes, bytes]]

MAX_BODY_BYTES = 64 * 1024 * 1024
RETRY_AFTER_S = 2
_METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Proxy:
    """The ASGI app. `replicas` is shared with whoever watches and restarts them."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer metrics and health for all replicas, pass everything else on."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path == routes.METRICS:
            await self._metrics(scope, send)
        elif path == routes.HEALTH or path.startswith(routes.HEALTH + "/"):
            await self._health(path, send)
        elif self.replicas.is_draining and scope["method"] == "POST":
            await _refuse(send, 503, "draining", "this server is draining", retry=True)
        else:
            await self._forward(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        if body is None:
            return
        if len(body) > MAX_BODY_BYTES:
            limit = MAX_BODY_BYTES // 2**20
            message = f"the body must be at most {limit} MiB, got {len(body) / 2**20:.1f} MiB"
            await _refuse(send, 413, "body_too_large", message)
            return
        tried: list[Replica] = []
        while (replica := self.replicas.take(tried)) is not None:
            try:
                stream = await _open(replica, scope, body)
                if stream is not None:
                    watches = scope["method"] == "POST"
                    await _relay(stream, replica, receive if watches else None, send)
                    return
            finally:
                self.replicas.release(replica)
            tried.append(replica)
            replica.is_ready = False
        message = "no replica is ready; they are loading or restarting"
        await _refuse(send, 503, "no_replica_ready", message, retry=True)

    async def _metrics(self, scope: Scope, send: Send) -> None:
        """All replicas' pages as one; a replica's refusal (a key is asked for) if none has any."""
        key = dict(scope["headers"]).get(b"authorization", b"")
        pages: dict[int, str] = {}
        refusals: list[tuple[int, bytes]] = []

        async def read(replica: Replica) -> None:
            try:
                status, page = await get(replica.url + routes.METRICS, authorization=key)
            except (OSError, AnswerCut):
                return
            if status == 200:
                pages[replica.index] = page.decode("utf-8", "replace")
            else:
                refusals.append((status, page))

        await asyncio.gather(*(read(replica) for replica in self.replicas.all))
        if refusals and not pages:
            await _answer(send, *refusals[0], b"application/json")
        else:
            await _answer(send, 200, metrics_merge.merge(pages).encode(), _METRICS_TYPE)

    async def _health(self, path: str, send: Send) -> None:
        num_ready = sum(replica.is_ready for replica in self.replicas.all)
        is_ok = num_ready > 0 or path == routes.HEALTH_LIVE
        if path == routes.HEALTH_READY and self.replicas.is_draining:
            is_ok = False
        body = {
            "status": "ok" if is_ok else "unavailable",
            "reason": "Draining" if self.replicas.is_draining else "Replicas",
            "message": f"{num_ready} of {len(self.replicas.all)} replicas are ready",
        }
        await _answer(send, 200 if is_ok else 503, json.dumps(body).encode(), b"application/json")


async def _open(replica: Replica, scope: Scope, body: bytes) -> ResponseStream | None:
    """Send the request to a replica; None if nothing listens there (nothing was sent)."""
    target = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
    if scope["query_string"]:
        target += "?" + scope["query_string"].decode("latin-1")
    headers = [h for h in end_to_end(scope["headers"]) if h[0] != b"content-length"]
    if scope.get("client"):
        headers.append((b"x-forwarded-for", scope["client"][0].encode("latin-1")))
    try:
        return await ResponseStream.open(
            scope["method"], replica.url + target, headers=headers, body=body
        )
    except OSError:
        return None


async def _relay(
    stream: ResponseStream, replica: Replica, receive: Receive | None, send: Send
) -> None:
    """Pass the answer on; end the replica's request when the client goes away.

    Without `receive` nobody looks for that: the answer costs nothing.
    """
    is_gone = False
    is_begun = False

    async def abort_with_client(receive: Receive) -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        stream.abort()

    watcher = asyncio.create_task(abort_with_client(receive)) if receive else None
    try:
        await stream.head()
        if not stream.header(b"content-type").startswith(b"text/event-stream"):
            whole = await stream.body()
            await _send_whole(send, stream, whole)
            return
        await send(_start(stream.status, end_to_end(stream.headers)))
        is_begun = True
        async for piece in stream.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    except AnswerCut as cut:
        status, code, message = 400, "client_closed", CLIENT_CLOSED
        if not is_gone:
            replica.is_ready = False
            status, code = 502, "engine_gone"
            message = f"replica {replica.index} ended while it answered: {cut}"
        if is_begun:
            event = b"data: " + _error_body(status, message, code) + b"\n\ndata: [DONE]\n\n"
            await send({"type": "http.response.body", "body": event})
        else:
            await _refuse(send, status, code, message, retry=not is_gone)
    finally:
        if watcher:
            watcher.cancel()
        stream.abort()


async def _send_whole(send: Send, stream: ResponseStream, body: bytes) -> None:
    headers = [h for h in end_to_end(stream.headers) if h[0] != b"content-length"]
    length = stream.header(b"content-length") if not body else str(len(body)).encode()
    await send(_start(stream.status, [*headers, (b"content-length", length or b"0")]))
    await send({"type": "http.response.body", "body": body})


async def _read_body(receive: Receive) -> bytes | None:
    """The request's body, cut just above the limit; None if the client has gone."""
    pieces, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece = message.get("body", b"")
        if size <= MAX_BODY_BYTES:
            pieces.append(piece)
        size += len(piece)
        if not message.get("more_body"):
            return b"".join(pieces)


def _error_body(status: int, message: str, code: str) -> bytes:
    error = {"message": message, "type": error_type(status), "param": None, "code": code}
    return json.dumps({"error": error}).encode()


async def _refuse(send: Send, status: int, code: str, message: str, *, retry: bool = False) -> None:
    extra = [(b"retry-after", str(RETRY_AFTER_S).encode())] if retry else []
    await _answer(send, status, _error_body(status, message, code), b"application/json", extra)


async def _answer(
    send: Send, status: int, body: bytes, content_type: bytes, extra: HeaderList | None = None
) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send(_start(status, headers + (extra or [])))
    await send({"type": "http.response.body", "body": body})


def _start(status: int, headers: HeaderList) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}

"""The outermost layer of the public app: request ids, keys, bodies that are too large."""

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Mapping

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline_crds import routes
from paceline_engine.serve.openai.auth import Guard
from paceline_engine.serve.openai.errors import ApiError, translate

MAX_BODY_BYTES = 4 * 1024 * 1024
"""It holds a million tokens of text, or 600 000 token ids. How it is read: `bodies.py`."""
_MAX_UNREAD_BYTES = 16 * MAX_BODY_BYTES
_MAX_UNREAD_S = 5.0
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestMiddleware:
    """ASGI middleware: gives each request an id, asks for its key, and answers every failure.

    Afterwards `request.state` has `request_id` and `tenant`.
    """

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an allowed request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in _READ}
        request_id = headers.get(b"x-request-id", b"").decode("latin-1")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = request_id

        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server sends the head of the answer alone

        unread = _UnreadBody(headers, receive)
        is_started = False

        async def send_marked(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                MutableHeaders(scope=message)["x-request-id"] = state["request_id"]
            elif unread.is_left and not message.get("more_body", False):
                # A connection that is closed over unread bytes is reset, and the answer lost: it
                # is sent first, so that a client may stop, and ends when the body has come.
                await send({**message, "more_body": True})
                await unread.drain()
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        try:
            authorization = headers.get(b"authorization", b"").decode("latin-1")
            named = headers.get(_TENANT_HEADER, b"").decode("latin-1")
            state["tenant"] = self._guard.tenant(scope["path"], authorization, named)
            await self._app(scope, unread.receive, send_marked)
        except Exception as error:
            answer = translate(error)
            if is_started:
                raise  # too late for an answer; the server closes the connection
            await answer.response()(scope, unread.receive, send_marked)


_TENANT_HEADER = routes.TENANT_HEADER.lower().encode()
_READ = frozenset(
    {
        b"x-request-id",
        b"authorization",
        b"content-length",
        b"transfer-encoding",
        b"expect",
        _TENANT_HEADER,
    }
)


class _UnreadBody:
    """What of a request's body nobody has read. Mutable: reading goes through it.

    Attributes:
        is_left: more of it may come. A client that waits to be asked for its body sends none.
    """

    def __init__(self, headers: Mapping[bytes, bytes], receive: Receive) -> None:
        length = headers.get(b"content-length", b"0")
        has_body = length != b"0" or b"transfer-encoding" in headers
        self.is_left = has_body and b"expect" not in headers
        self._receive = receive

    async def receive(self) -> Message:
        """Read on."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.is_left = False
        return message

    async def drain(self) -> None:
        """Read the rest away; of an endless or a slow one, so much at most."""
        num_bytes = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MAX_UNREAD_S):
                while self.is_left and num_bytes < _MAX_UNREAD_BYTES:
                    num_bytes += len((await self.receive()).get("body", b""))


async def read_json_body(request: HttpRequest) -> bytes:
    """The body of a JSON request.

    Raises:
        ApiError: 413 over the limit, 415 for another content type or encoding.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(
            415,
            f"the content type must be application/json, got {kind[:64]!r}; "
            "send the header `Content-Type: application/json`",
            code="unsupported_media_type",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise ApiError(
            415,
            f"the content encoding must be identity, got {encoding[:64]!r}; send the body as it is",
            code="unsupported_media_type",
        )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise _too_large()
    data = bytearray()
    async for part in _parts(request):
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise _too_large()
    return bytes(data)


async def _parts(request: HttpRequest) -> AsyncIterator[bytes]:
    try:
        async for part in request.stream():
            yield part
    except ClientDisconnect:
        # Nobody reads this; it ends the request in the ordinary way.
        raise ApiError(400, "the client went away before its body was read") from None


def _too_large() -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {MAX_BODY_BYTES} bytes",
        code="body_too_large",
        headers={"Connection": "close"},
    )

"""The outermost layer of the public app: request ids, keys, bodies that are too large."""

import re
import uuid
from collections.abc import AsyncIterator

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline_engine.serve.openai.auth import Guard
from paceline_engine.serve.openai.errors import ApiError, translate

MAX_BODY_BYTES = 32 * 1024 * 1024
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Border:
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

        is_started = False

        async def send_marked(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                MutableHeaders(scope=message)["x-request-id"] = state["request_id"]
            await send(message)

        try:
            authorization = headers.get(b"authorization", b"").decode("latin-1")
            state["tenant"] = self._guard.tenant(scope["path"], authorization)
            await self._app(scope, receive, send_marked)
        except Exception as error:
            answer = translate(error)
            if is_started:
                raise  # too late for an answer; the server closes the connection
            await answer.response()(scope, receive, send_marked)


_READ = frozenset({b"x-request-id", b"authorization"})


async def read_json_body(request: HttpRequest) -> bytes:
    """The body of a JSON request.

    Raises:
        ApiError: 413 over the limit, 415 for another content type.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(
            415,
            f"the content type must be application/json, got {kind[:64]!r}; "
            "send the header `Content-Type: application/json`",
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

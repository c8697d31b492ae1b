"""The drain at the public port: refuses new work, asks clients to reconnect, counts what runs."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from paceline_engine.serve.drain import Drain
from paceline_engine.serve.error_types import error_type

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_REFUSAL = json.dumps(
    {
        "error": {
            "message": "this server is draining; send the request again, another replica will "
            "take it",
            "type": error_type(503),
            "param": None,
            "code": "draining",
        }
    }
).encode()
RETRY_AFTER_S = 1


class DrainGate:
    """ASGI middleware around the public app.

    Attributes:
        num_open: requests for work (POST) whose answer is not fully sent.
        idle: set while there are none.
    """

    def __init__(self, app: App, drain: Drain) -> None:
        self.num_open = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 503 in phase 2, else pass on; from phase 1 on every response closes."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] != "POST":
            await self._app(scope, receive, self._closing(send))
            return
        if not self._drain.accepts_new:
            await _refuse(receive, send)
            return
        self.num_open += 1
        self.idle.clear()
        try:
            await self._app(scope, receive, self._closing(send))
        finally:
            self.num_open -= 1
            if self.num_open == 0:
                self.idle.set()

    def _closing(self, send: Send) -> Send:
        async def send_closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._drain.closes_connections:
                headers = [h for h in message.get("headers", ()) if h[0].lower() != b"connection"]
                message["headers"] = [*headers, (b"connection", b"close")]
            await send(message)

        return send_closing


async def _refuse(receive: Receive, send: Send) -> None:
    # The body is read first: a connection closed over unread bytes is reset, and the answer lost.
    while (await receive()).get("more_body", False):
        pass
    await send(
        {
            "type": "http.response.start",
            "status": 503,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(_REFUSAL)).encode()),
                (b"retry-after", str(RETRY_AFTER_S).encode()),
                (b"connection", b"close"),
            ],
        }
    )
    await send({"type": "http.response.body", "body": _REFUSAL})

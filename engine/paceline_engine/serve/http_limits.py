"""HTTP/1.1 of both ports: uvicorn's protocol with the limits that it has not.

Without them one client who needs no key holds up everybody: a header without an end is joined
again at each read, and connections that send nothing, or never finish a request, take a file
descriptor each for ever.
"""

import asyncio
import json
import logging
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paceline_engine.serve.error_types import error_type

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Of request line and headers together; common proxies take 8 to 60 KiB."""
MAX_HEADERS = 256
REQUEST_TIMEOUT_S = 75.0
"""From the connection, or from the first byte of a later request, to the last byte of the body.
Longer than the 60 s after which common proxies close what they do not use."""

_PHRASES = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class LimitedHttp(HttpToolsProtocol):
    """One connection. A request that breaks a limit is answered and the connection closed."""

    request_timeout_s = REQUEST_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0  # received since the last head ended
        self._is_in_head = True
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; its request must follow."""
        super().connection_made(transport)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client went away."""
        self._request_is_whole()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, in a head only so far as it may be long."""
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                # What is left of the allowance may end the head: then the rest is its body.
                allowed = MAX_HEAD_BYTES - (self._head_bytes - len(data))
                super().data_received(data[:allowed])
                data = data[allowed:]
                if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                    self._refuse(431, f"request line and headers exceed {MAX_HEAD_BYTES} bytes")
        if not self.transport.is_closing():
            super().data_received(data)

    def on_message_begin(self) -> None:
        """The parser found the first byte of a request."""
        super().on_message_begin()
        if self._deadline is None:
            self._expect_request()

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser found a header."""
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS and not self.transport.is_closing():
            self._refuse(431, f"a request may have {MAX_HEADERS} headers")

    def on_headers_complete(self) -> None:
        """The parser found the end of the headers."""
        self._is_in_head = False
        self._head_bytes = 0
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """The parser found a piece of the body."""
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The parser found the end of a request."""
        self._is_in_head = True
        self._request_is_whole()
        if not self.transport.is_closing():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What was sent is no HTTP."""
        self._refuse(400, msg)

    def _expect_request(self) -> None:
        self._request_is_whole()
        self._deadline = self.loop.call_later(self.request_timeout_s, self._give_up)

    def _request_is_whole(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._expect_request()  # it is not read on while the request before it is answered
        elif self._is_in_head and not self._head_bytes:
            self.transport.close()
        else:
            self._refuse(408, f"no whole request came within {self.request_timeout_s:g} s")

    def _refuse(self, status: int, message: str) -> None:
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.close()  # another answer is under way
            return
        error = {"message": message, "type": error_type(status), "param": None}
        body = json.dumps({"error": {**error, "code": _CODES[status]}}).encode()
        head = (
            f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


_CODES = {400: "invalid_http", 408: "request_timeout", 431: "headers_too_large"}


def raise_file_limit() -> None:
    """Take as many open files as the system gives: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("open files stay limited to %d: %s", soft, error)

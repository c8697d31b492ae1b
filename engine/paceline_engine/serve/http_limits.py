"""HTTP/1.1 of both ports: uvicorn's protocol with the limits that it has not.

Without them one client who needs no key holds up everybody: a header without an end is joined
again at each read, and connections that send nothing, never finish a request or never read their
answer take a file descriptor each for ever.
"""

import array
import asyncio
import fcntl
import json
import logging
import resource
import sys
import termios
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
SEND_TIMEOUT_S = 75.0
"""A client that takes not one byte of what waits for it for so long is gone; nginx's `send_timeout`
is 60 s. Small answers never wait: the system holds some hundred KiB for each connection."""
CLIENT_CLOSED = (
    "the client closed its side of the connection, which counts as going away, so the request was "
    "ended; keep it open until the answer has come (`nc` without -N)"
)
"""For who only closed its sending half: from a client that went away it cannot be told before
something is sent."""

_PHRASES = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class LimitedHttp(HttpToolsProtocol):
    """One connection. A request that breaks a limit is answered and the connection closed."""

    request_timeout_s = REQUEST_TIMEOUT_S
    send_timeout_s = SEND_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = self._attended(self.app)
        self._head_bytes = 0  # received since the last head ended
        self._is_in_head = True
        self._is_half_closed = False
        self._deadline: asyncio.TimerHandle | None = None
        self._send_deadline: asyncio.TimerHandle | None = None
        self._untaken_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; its request must follow."""
        super().connection_made(transport)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client went away."""
        self._request_is_whole()
        self._stop_watching()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client will send no more; True if what it asked for is still answered."""
        if self.cycle is None or self.cycle.response_complete or not self._is_in_head:
            return False
        self._is_half_closed = True
        self.cycle.keep_alive = False
        self.cycle.message_event.set()
        return True

    def pause_writing(self) -> None:
        """More waits to be sent than may wait."""
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        """The client took some of it."""
        super().resume_writing()
        self._stop_watching()
        self._watch_sending()

    def data_received(self, data: bytes) -> None:
        """Read on, in a head only so far as it may be long."""
        if self._is_in_head:
            if self._deadline is None:
                self._expect_request()  # line breaks before a request begin none for the parser
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

    def _attended(self, app: Any) -> Any:
        """The app; one that listens for its client is told when that will send no more."""

        async def attended(scope: Any, receive: Any, send: Any) -> None:
            is_whole = False

            async def receive_or_end() -> Any:
                nonlocal is_whole
                if is_whole and self._is_half_closed:
                    return {"type": "http.disconnect"}
                message = await receive()
                if is_whole and self._is_half_closed:
                    return {"type": "http.disconnect"}
                is_whole = not message.get("more_body", False)
                return message

            try:
                await app(scope, receive_or_end, send)
            finally:
                self._watch_sending()

        return attended

    def _watch_sending(self) -> None:
        self._untaken_bytes = self._num_untaken()
        if self._untaken_bytes and self._send_deadline is None:
            self._send_deadline = self.loop.call_later(self.send_timeout_s, self._check_sending)

    def _stop_watching(self) -> None:
        if self._send_deadline is not None:
            self._send_deadline.cancel()
            self._send_deadline = None

    def _check_sending(self) -> None:
        self._send_deadline = None
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering and not self.flow.write_paused and not self.transport.is_closing():
            return  # what waits now is new
        before, untaken = self._untaken_bytes, self._num_untaken()
        if untaken and untaken >= before:
            self.transport.abort()
        else:
            self._watch_sending()

    def _num_untaken(self) -> int:
        """Bytes that the client has not taken yet; 0 once the system holds all of them."""
        num_bytes = self.transport.get_write_buffer_size()
        if num_bytes and sys.platform == "linux":
            # The system tells of room for more only in steps of about a megabyte.
            held = array.array("i", [0])
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, held)
            num_bytes += held[0]
        return num_bytes

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
        is_answered = self.cycle is not None and self.cycle.response_complete
        is_answering = self.cycle is not None and not is_answered
        # What is still to come: the rest of a body that nobody waits for, or nothing at all.
        has_no_use = not self._head_bytes if self._is_in_head else is_answered
        if self.pipeline or (is_answering and self._is_in_head):
            self._expect_request()  # nothing is read on while the request before it is answered
        elif has_no_use:
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
        self._watch_sending()


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

"""One HTTP/1.1 request whose answer is read as it arrives.

The load client and the replicas' proxy share the machine's cores with the engine, so what they
spend per token counts. This is a bare asyncio protocol on httptools' C parser with one connection
per request: no pool, no stale connection, and the end of the connection is the end of the answer.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Self, cast
from urllib.parse import urlsplit

import httptools

Headers = Sequence[tuple[bytes, bytes]]

_HIGH_WATER_BYTES = 256 * 1024
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


class AnswerCut(Exception):
    """The server closed the connection before its answer was whole, or spoke no HTTP."""


def end_to_end(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers that a proxy passes on: without those that belong to one connection."""
    return [(name, value) for name, value in headers if name.lower() not in _HOP_BY_HOP]


class ResponseStream(asyncio.Protocol):
    """The answer to one request.

    Attributes:
        status: 0 until `head` has returned.
        headers: lower-case names, in order.
        has_body: False for the answer to a HEAD, which ends with its headers.
    """

    def __init__(self) -> None:
        self.status = 0
        self.has_body = True
        self.headers: list[tuple[bytes, bytes]] = []
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._head_seen = asyncio.Event()
        self._wake = asyncio.Event()
        self._pieces: deque[bytes] = deque()
        self._queued_bytes = 0
        self._is_whole = False
        self._is_over = False
        self._cause: str = ""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._cause = f"the server's answer is not HTTP/1.1: {error}"
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        if not self._is_whole and not self._cause:
            if self._ends_with_connection():
                self._is_whole = True
            else:
                self._cause = f"the server closed the connection ({exc or 'end of stream'})"
        self._finish()

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self.status = self._parser.get_status_code()
        self._head_seen.set()

    def on_body(self, body: bytes) -> None:
        """Called by the parser, once per piece of the body as it arrived."""
        self.received(body)

    def on_message_complete(self) -> None:
        """Called by the parser; an interim answer (1xx) does not end the stream."""
        if self.status < 200:
            self._head_seen.clear()
            self.headers.clear()
            return
        self._is_whole = True
        self._finish()
        if self._transport is not None:
            self._transport.close()

    # ours

    def received(self, body: bytes) -> None:
        """Take one piece of the body: queued for `pieces`. A load client overrides this."""
        self._pieces.append(body)
        self._queued_bytes += len(body)
        self._wake.set()
        if self._queued_bytes > _HIGH_WATER_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def header(self, name: bytes) -> bytes:
        """Value of the first header of that lower-case name, empty if there is none."""
        return next((value for key, value in self.headers if key == name), b"")

    async def head(self) -> None:
        """Wait for status and headers.

        Raises:
            AnswerCut: the connection ended before them.
        """
        await self._head_seen.wait()
        if not self.status:
            raise AnswerCut(self._cause)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives, nothing held back.

        Raises:
            AnswerCut: the connection ended before the body was whole.
        """
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._queued_bytes -= len(piece)
                yield piece
            if self._is_over:
                break
            self._wake.clear()
            if self._transport is not None:
                self._transport.resume_reading()
            await self._wake.wait()
        if not self._is_whole:
            raise AnswerCut(self._cause)

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            AnswerCut: the connection ended before the body was whole.
        """
        return b"".join([piece async for piece in self.pieces()])

    async def whole(self) -> None:
        """Wait for the end of the answer, for readers that override `received`.

        Raises:
            AnswerCut: the connection ended before the body was whole.
        """
        while not self._is_over:
            self._wake.clear()
            await self._wake.wait()
        if not self._is_whole:
            raise AnswerCut(self._cause)

    def abort(self) -> None:
        """Close the connection now; the server sees a client that went away."""
        self._cause = self._cause or "the reader went away"
        if self._transport is not None:
            self._transport.abort()
        self._finish()

    def _ends_with_connection(self) -> bool:
        framed = {b"content-length", b"transfer-encoding"}
        return self.status >= 200 and (
            not self.has_body or not any(name in framed for name, _ in self.headers)
        )

    def _finish(self) -> None:
        self._is_over = True
        self._head_seen.set()
        self._wake.set()

    @classmethod
    async def open(
        cls,
        method: str,
        url: str,
        *,
        headers: Headers = (),
        body: bytes = b"",
        connect_timeout_s: float = 5.0,
    ) -> Self:
        """Connect and send one request; then wait with `head`.

        Raises:
            OSError: no connection (TimeoutError included).
            ValueError: the URL is not http:// or https:// with a host.
        """
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"URL must be http://HOST[:PORT]/... or https://..., got {url!r}")
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_timeout_s):
            transport, stream = await loop.create_connection(cls, parts.hostname, port, ssl=secure)
        stream.has_body = method != "HEAD"
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"{method} {target} HTTP/1.1".encode("latin-1")]
        if not any(name.lower() == b"host" for name, _ in headers):
            lines.append(b"host: " + parts.netloc.encode("latin-1"))
        lines += [name + b": " + value for name, value in headers]
        if body or method in {"POST", "PUT", "PATCH"}:
            lines.append(b"content-length: " + str(len(body)).encode())
        lines += [b"connection: close", b"", b""]
        transport.write(b"\r\n".join(lines) + body)
        return stream

"""The step process's end of the socket: never blocks on a slow reader, waits only when idle."""

import select
import socket
import time
from collections import deque

from paceline_engine.serve.step.messages import (
    SOCKET_BUFFER_BYTES,
    FrameBuffer,
    FromEngine,
    ToEngine,
    decode_to_engine,
    frame,
)

_READ_BYTES = 1 << 18


class LinkClosed(Exception):
    """The client closed its end: nobody is served any longer."""


class Link:
    """Frames over one connected stream socket, which it owns."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        self._socket = connection
        self._frames = FrameBuffer()
        self._unsent: deque[memoryview] = deque()

    def send(self, message: FromEngine) -> None:
        """Send now what the socket takes; the rest goes with the next calls.

        Raises:
            LinkClosed: the client is gone.
        """
        self._unsent.append(memoryview(frame(message)))
        self._send_some()

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        """Messages that have come, waiting for the first at most so long (None: for ever).

        Raises:
            LinkClosed: the client is gone.
        """
        if self._unsent:
            self._send_some()
        messages = self._read()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not messages and (timeout_s is None or timeout_s > 0):
            writers = [self._socket] if self._unsent else []
            _, writable, _ = select.select([self._socket], writers, [], timeout_s)
            if writable:
                self._send_some()
            messages = self._read()
            if deadline is not None:
                timeout_s = deadline - time.monotonic()
        return messages

    def flush(self, timeout_s: float) -> None:
        """Before the end: wait until everything is sent, at most so long."""
        deadline = time.monotonic() + timeout_s
        while self._unsent and (left_s := deadline - time.monotonic()) > 0:
            select.select([], [self._socket], [], left_s)
            self._send_some()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _read(self) -> list[ToEngine]:
        messages: list[ToEngine] = []
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return messages
            except ConnectionError as error:
                raise LinkClosed from error
            if not data:
                raise LinkClosed
            messages += map(decode_to_engine, self._frames.feed(data))
            if len(data) < _READ_BYTES:
                return messages

    def _send_some(self) -> None:
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent[0])
                if sent == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][sent:]
        except BlockingIOError:
            return
        except ConnectionError as error:
            raise LinkClosed from error

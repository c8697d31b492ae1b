"""The admin port of a pod as an address of this machine, through the API server.

For an operator outside of the cluster, with the person's own kubeconfig. As `kubectl port-forward`
does it: a listener on the loopback, and one stream of the API server for each connection to it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import aiohttp

from paceline_operator.resources import objects
from paceline_operator.shell import kinds
from paceline_operator.shell.errors import ApiUnreachable
from paceline_operator.shell.session import Session

_log = logging.getLogger(__name__)
_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_PORT_BYTES = 2
"""The server begins each channel with the number of the port."""
_CHUNK = 64 * 1024


class PortForwards:
    """One listener per pod and port. Mutable."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._servers: dict[tuple[str, int], asyncio.Server] = {}

    async def address(self, pod: Mapping[str, Any], port: int) -> str:
        """`host:port` that leads to a pod's port."""
        place = objects.uid(pod), port
        if place not in self._servers:
            path = kinds.POD.path(
                objects.text(pod, "metadata", "namespace"), objects.name(pod), "portforward"
            )

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._serve(path, port, reader, writer)

            self._servers[place] = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, number = self._servers[place].sockets[0].getsockname()[:2]
        return f"{host}:{number}"

    def keep_only(self, pod_uids: set[str]) -> None:
        """End the listeners of pods that are gone."""
        for place in [place for place in self._servers if place[0] not in pod_uids]:
            self._servers.pop(place).close()

    async def _serve(
        self, path: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.closing(writer):
            try:
                stream = await self._session.websocket(path, {"ports": str(port)}, _PROTOCOL)
            except ApiUnreachable as error:
                _log.debug("port-forward: %s", error)
                return
            async with stream:
                up = asyncio.create_task(_upwards(reader, stream))
                try:
                    await _downwards(stream, writer)
                except OSError as error:
                    _log.debug("port-forward: %s", error)
                finally:
                    up.cancel()
                    with contextlib.suppress(asyncio.CancelledError, OSError):
                        await up


async def _upwards(reader: asyncio.StreamReader, stream: aiohttp.ClientWebSocketResponse) -> None:
    while data := await reader.read(_CHUNK):
        await stream.send_bytes(bytes([_DATA]) + data)
    await stream.close()


async def _downwards(stream: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    begun = {_DATA: False, _ERROR: False}
    async for message in stream:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if not begun.get(channel, True):
            begun[channel] = True
            data = data[_PORT_BYTES:]
        if not data:
            continue
        if channel == _ERROR:
            _log.debug("port-forward: %s", data.decode(errors="replace"))
            return
        writer.write(data)
        await writer.drain()

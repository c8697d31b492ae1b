"""An `EngineClient` that starts the step process and speaks to it over a socket."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable

from paceline_engine.core.errors import StartFailed
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.step.engine_client import EngineInfo, Heartbeat
from paceline_engine.serve.step.heartbeat import SharedHeartbeat
from paceline_engine.serve.step.message_client import MessageClient
from paceline_engine.serve.step.messages import (
    SOCKET_BUFFER_BYTES,
    FrameBuffer,
    FromEngine,
    Loaded,
    Start,
    Stop,
    ToEngine,
    decode_from_engine,
    frame,
)

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 3.0
LOADING_TIMEOUT_S = 0.5
"""One that loads reads no messages while it imports, and has nothing to lose."""
HANG_UP_TIMEOUT_S = 1.0
_STEP_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Unless the person set it: OpenMP's threads would spin between steps, on the cores that send the
answers."""


class SocketEngineClient(MessageClient):
    """Owns one step process.

    Attributes:
        exit_code: of the step process, None while it lives; negative for a signal.
        prepare: called in a thread with a loaded engine before it is called ready; what it raises
            ends the start.
    """

    def __init__(self, config: ServeConfig) -> None:
        super().__init__(self._write)
        self.exit_code: int | None = None
        self.prepare: Callable[[EngineInfo], None] | None = None
        self._config = config
        self._page: SharedHeartbeat | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.Transport | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._hung_up = asyncio.Event()
        self._is_closing = False

    @property
    def heartbeat(self) -> Heartbeat:
        """Progress of the step loop as of now, read from the shared page."""
        if self._page is None:
            return Heartbeat(last_progress_s=0.0, has_work=False, predicted_step_s=0.0)
        return self.watched(self._page.read())

    @property
    def pid(self) -> int | None:
        """The step process, None before it is started."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the step process and go on: `startup` says how it fares."""
        ours, theirs = socket.socketpair()
        heartbeat_fd = SharedHeartbeat.create_file()
        try:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
            self._page = SharedHeartbeat(heartbeat_fd)
            fds = theirs.fileno(), heartbeat_fd
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "paceline_engine.serve.step.step_process",
                f"--fd={fds[0]}",
                f"--heartbeat-fd={fds[1]}",
                pass_fds=fds,
                stdin=asyncio.subprocess.DEVNULL,
                env=_STEP_ENVIRONMENT | os.environ,
            )
        finally:
            theirs.close()
            os.close(heartbeat_fd)
        ours.setblocking(False)
        self._transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: _Reader(self, self._hung_up), sock=ours
        )
        self._write(self._start_message())
        self._watcher = asyncio.create_task(self._watch(self._process))

    async def wait_ended(self) -> None:
        """Until the step process is gone, for whatever reason; `startup` holds it."""
        await self._ended.wait()

    async def close(self) -> None:
        """End the step process: by a message, and by force if that takes long."""
        self._is_closing = True
        if self._process is None or self._watcher is None:
            self.lose("Closed", "the server is shutting down")
            self._ended.set()
            return
        self._write(Stop())
        try:
            patience_s = CLOSE_TIMEOUT_S if self.info is not None else LOADING_TIMEOUT_S
            await asyncio.wait_for(asyncio.shield(self._watcher), patience_s)
        except TimeoutError:
            log.debug("the step process does not answer; it is killed")
            self._process.kill()
            await self._watcher
        if self._transport is not None:
            self._transport.close()
        page, self._page = self._page, None
        if page is not None:
            page.close()

    def receive(self, message: FromEngine) -> None:
        """Take one message of the loop; what it loaded is prepared before it counts as ready."""
        if isinstance(message, Loaded) and self.prepare is not None:
            self._preparing = asyncio.create_task(self._make_ready(message, self.prepare))
        else:
            super().receive(message)

    async def _make_ready(self, loaded: Loaded, prepare: Callable[[EngineInfo], None]) -> None:
        try:
            await asyncio.to_thread(prepare, loaded.info)
        except StartFailed as error:
            self.lose(error.reason, str(error))
        except Exception as error:
            log.exception("the loaded model cannot be served")
            self.lose("Internal", f"{type(error).__name__}: {error}")
        else:
            super().receive(loaded)
            return
        self._write(Stop())

    def _start_message(self) -> Start:
        config = self._config
        return Start(
            model=config.model,
            model_dir="" if config.model_dir is None else str(config.model_dir),
            model_name=config.model_name,
            revision=config.revision,
            cache_dir="" if config.cache_dir is None else str(config.cache_dir),
            settings=config.settings.written_on_border(),
            settings_revision=config.settings_revision,
            settings_file="" if config.settings_file is None else str(config.settings_file),
            runner_factory=config.runner_factory,
            log_level=config.log_level,
        )

    def _write(self, message: ToEngine) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        self.exit_code = await process.wait()
        # What it sent before its end, its own reason above all, is still read first.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hung_up.wait(), HANG_UP_TIMEOUT_S)
        if self._is_closing:
            self.lose("Closed", "the server is shutting down")
        else:
            self.lose("EngineDied", f"the step process ended {_how(self.exit_code)}")
        self._ended.set()


class _Reader(asyncio.Protocol):
    """Hands over every message of a read at once: one wake-up per step, not per token."""

    def __init__(self, client: MessageClient, hung_up: asyncio.Event) -> None:
        self._client = client
        self._hung_up = hung_up
        self._frames = FrameBuffer()

    def data_received(self, data: bytes) -> None:
        """Take what the step process sent."""
        for body in self._frames.feed(data):
            self._client.receive(decode_from_engine(body))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The step process closed its end, or ended."""
        self._hung_up.set()


def _how(exit_code: int) -> str:
    if exit_code < 0:
        return f"by signal {signal.Signals(-exit_code).name}"
    return f"with exit code {exit_code}"

"""The life of one server: listen, start the engine, serve, drain, exit with a reason."""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI

from paceline_crds.phases import DrainPhase, StartupPhase
from paceline_engine.core.errors import StartFailed
from paceline_engine.core.unsupported import refuse_at_start
from paceline_engine.serve import http_limits, listeners
from paceline_engine.serve.admin.admin import create_admin_app
from paceline_engine.serve.config import LOG_FORMAT, ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.drain_gate import DrainGate
from paceline_engine.serve.openai import app
from paceline_engine.serve.openai.served_model import ServedModel
from paceline_engine.serve.step.engine_client import EngineInfo, Startup
from paceline_engine.serve.step.socket_client import SocketEngineClient

log = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_ENGINE_DIED = 1
EXIT_USAGE = 2
EXIT_START_FAILED = 3

KEEP_ALIVE_S = 75
"""Longer than the idle time of common proxies (60 s), so that it is they who close a connection."""
_TICK_S = 0.05
_FLUSH_S = 2.0
_SETTLED = frozenset({StartupPhase.READY, StartupPhase.FAILED})
_CUT_MESSAGE = "the server shut down before this request finished; send it again"


def serve(config: ServeConfig) -> int:
    """Serve until a signal or the end of the engine; returns the exit code.

    0 after a drain, 1 when the engine died, 2 when the config cannot be served (a taken port), 3
    when the model could not be loaded. The reason is the last line of the log.
    """
    logging.basicConfig(level=config.log_level.upper(), format=LOG_FORMAT)
    # Its lines about its own start and end say nothing that ours do not.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    http_limits.raise_file_limit()
    try:
        refuse_at_start(config.settings)
        life = _Life(config)
    except StartFailed as error:
        log.error("cannot start: %s", error)
        return EXIT_USAGE
    loop_factory = uvicorn.Config(_no_app, log_config=None).get_loop_factory()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(life.run())


class _Server(uvicorn.Server):
    """A server whose signals are somebody else's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the handlers of the process alone."""
        yield


@dataclass(slots=True)
class _Running:
    server: _Server
    task: asyncio.Task[None]


class _Life:
    """What one `serve` call owns; lives in one event loop."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._client = SocketEngineClient(config)
        served = ServedModel(self._client, config)
        self._client.prepare = served.prepare
        self._drain = Drain(
            shutdown_timeout_s=config.shutdown_timeout_s,
            sigterm_propagation_s=config.sigterm_propagation_s,
        )
        self._poke = asyncio.Event()
        self._gate = DrainGate(
            app.create_public_app(self._client, config, self._drain, served), self._drain
        )
        self._admin_app = create_admin_app(
            self._client, config, self._drain, on_drain=self._poke.set
        )
        self._listeners = listeners.open_listeners(config)
        self._logged_phase = DrainPhase.SERVING

    async def run(self) -> int:
        """From the first handler to the exit code."""
        loop = asyncio.get_running_loop()
        # Handlers come before the load: SIGTERM while a model loads is an ordinary drain.
        loop.add_signal_handler(signal.SIGTERM, self._on_signal, self._drain.terminate)
        loop.add_signal_handler(signal.SIGINT, self._on_signal, self._drain.interrupt)
        loop.add_signal_handler(signal.SIGUSR1, self._on_signal, self._drain.announce)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            loop.add_signal_handler(signal.SIGHUP, self._on_signal, self._drain.hang_up)
        running = [
            _start(self._gate, self._listeners.public),
            _start(self._admin_app, self._listeners.admin),
        ]
        log.info(
            "listening on %s (admin %s); loading %s",
            listeners.url_of(self._listeners.public),
            listeners.url_of(self._listeners.admin),
            self._config.model,
        )
        announcing = asyncio.create_task(self._announce())
        try:
            await self._client.start()
            return await self._until_over()
        finally:
            announcing.cancel()
            for one in running:
                one.server.should_exit = True
            await asyncio.gather(self._client.close(), *(one.task for one in running))
            self._listeners.close()

    def _on_signal(self, act: Callable[[float], None]) -> None:
        act(time.monotonic())
        self._poke.set()

    async def _until_over(self) -> int:
        engine_ended = asyncio.create_task(self._client.wait_ended())
        try:
            while True:
                await self._pause(engine_ended)
                now = time.monotonic()
                phase = self._drain.advance(now, self._gate.num_open)
                self._log_phase(phase, now, self._gate.num_open)
                if self._drain.may_exit:
                    log.info("drained; exiting")
                    return EXIT_OK
                if engine_ended.done():
                    return await self._mourn()
                if self._drain.is_cut_short:
                    await self._cut()
                    return EXIT_OK
        finally:
            engine_ended.cancel()

    async def _pause(self, engine_ended: asyncio.Task[None]) -> None:
        """Until a signal, a drain or the engine's end; while draining, a tick at most."""
        is_moving = self._drain.phase in {DrainPhase.PROPAGATING, DrainPhase.DRAINING}
        poked = asyncio.create_task(self._poke.wait())
        await asyncio.wait(
            {poked, engine_ended},
            timeout=_TICK_S if is_moving else None,
            return_when=asyncio.FIRST_COMPLETED,
        )
        poked.cancel()
        self._poke.clear()

    async def _cut(self) -> None:
        """The grace is over: every client still there gets an error, none is cut in silence."""
        log.warning(
            "%d requests did not finish in time; each gets an error and the server exits",
            self._gate.num_open,
        )
        self._client.end_streams(_CUT_MESSAGE)
        await self._flush()

    async def _mourn(self) -> int:
        startup = self._client.startup
        await self._flush()
        if self._client.info is not None:
            log.error("the engine ended: %s: %s", startup.reason, startup.message)
            return EXIT_ENGINE_DIED
        log.error("the engine did not start: %s: %s", startup.reason, startup.message)
        return EXIT_START_FAILED

    async def _flush(self) -> None:
        """Until every answer is sent, a short while at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gate.idle.wait(), _FLUSH_S)

    async def _announce(self) -> None:
        """Say how the start goes, each phase once and each tenth of it."""
        said: tuple[str, int] | None = None
        while (startup := self._client.startup).phase not in _SETTLED:
            step = startup.phase, int(startup.progress * 10)
            if step != said and startup.phase != StartupPhase.SPAWNING:
                share = f" {step[1] * 10}%" if startup.progress else ""
                log.info("%s%s", startup.phase.lower(), share)
                said = step
            await asyncio.sleep(_TICK_S)
        if startup.phase == StartupPhase.READY and self._client.info is not None:
            self._say_ready(startup, self._client.info)

    def _say_ready(self, startup: Startup, info: EngineInfo) -> None:
        seconds = sum(startup.seconds_by_phase.values())
        log.info(
            "ready after %.1f s: %s on %s, %s, %d KV blocks of %d tokens, requests up to %d tokens",
            seconds,
            info.model,
            listeners.url_of(self._listeners.public),
            info.dtype,
            info.num_blocks - 1,
            info.block_size,
            info.max_model_len,
        )

    def _log_phase(self, phase: DrainPhase, now: float, num_open: int) -> None:
        if phase is self._logged_phase:
            return
        self._logged_phase = phase
        left_s = self._drain.seconds_left(now)
        log.info(
            "drain (%s): %s, %d requests open%s",
            self._drain.reason,
            phase.value,
            num_open,
            "" if left_s is None else f", at most {left_s:.0f} s left",
        )


def _start(app_to_serve: FastAPI | DrainGate, listener: socket.socket) -> _Running:
    server = _Server(
        uvicorn.Config(
            app_to_serve,
            log_config=None,
            access_log=False,
            ws="none",
            http=http_limits.LimitedHttp,
            server_header=False,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
    )
    return _Running(server, asyncio.create_task(server.serve(sockets=[listener])))


async def _no_app(*_: object) -> None:
    """Only there because a config asks for an app."""

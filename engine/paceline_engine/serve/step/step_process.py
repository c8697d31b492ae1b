"""The step process: loads the model and runs the step loop for the client behind a socket.

`python -m paceline_engine.serve.step.step_process --fd N --heartbeat-fd M`, started by
`socket_client`. It ends when its client does; signals are the client's business, since a supervisor
may send them to every process at once while the client still drains.
"""

import argparse
import gc
import importlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline_crds.phases import StartupPhase
from paceline_crds.settings import EngineSettings
from paceline_engine import parent
from paceline_engine.core.errors import StartFailed
from paceline_engine.core.unsupported import refuse_at_start
from paceline_engine.leave import leave
from paceline_engine.serve.config import LOG_FORMAT
from paceline_engine.serve.step import settings_file
from paceline_engine.serve.step.assembly import LoadedRunner, assemble, engine_info
from paceline_engine.serve.step.heartbeat import SharedHeartbeat
from paceline_engine.serve.step.lean_import import lean_torch
from paceline_engine.serve.step.link import Link, LinkClosed
from paceline_engine.serve.step.loop import DeviceBroken
from paceline_engine.serve.step.messages import Failed, Loaded, Progress, Start, Stop

log = logging.getLogger(__name__)

EXIT_START_FAILED = 3
EXIT_DEVICE_BROKEN = 4
EXIT_INTERNAL = 1
_PHASES = {
    "wait": StartupPhase.FETCHING,
    "download": StartupPhase.FETCHING,
    "convert": StartupPhase.CONVERTING,
    "config": StartupPhase.LOADING,
    "weights": StartupPhase.LOADING,
    "kernels": StartupPhase.MEASURING,
    "kv_scales": StartupPhase.MEASURING,
    "kv_cache": StartupPhase.PLANNING,
    "ready": StartupPhase.PLANNING,
}
"""What those who load say of their work -> the phase that people see."""
_PROGRESS_EVERY_S = 0.05
_FLUSH_S = 1.0


class Starting:
    """Progress of the start, sent as it goes.

    Attributes:
        seconds_by_phase: finished phases.
    """

    def __init__(self, link: Link, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds_by_phase: dict[str, float] = {}
        self._link = link
        self._clock = clock
        self._phase: StartupPhase | None = None
        self._since_s = clock()
        self._sent_s = 0.0

    def progress(self, work: str, progress: float) -> None:
        """Say where the start is; called by whoever loads.

        Args:
            work: a phase, or what a loader calls its work (`_PHASES`).
            progress: 0..1 of it.

        Raises:
            SystemExit: the client went away or asked for the end meanwhile.
        """
        now = self._clock()
        phase = _PHASES.get(work) or StartupPhase(work)
        if phase != self._phase:
            self.end_phase(now)
            self._phase = phase
            self._sent_s = 0.0
        if now - self._sent_s < _PROGRESS_EVERY_S and progress < 1.0:
            return
        self._sent_s = now
        self._link.send(Progress(phase, progress, dict(self.seconds_by_phase)))
        if any(isinstance(message, Stop) for message in self._link.receive(0)):
            raise SystemExit(0)

    def end_phase(self, now: float) -> None:
        """Close the books of the phase that was."""
        if self._phase:
            spent_s = self.seconds_by_phase.get(self._phase, 0.0) + now - self._since_s
            self.seconds_by_phase[self._phase] = spent_s
        self._phase = None
        self._since_s = now


def main(argv: list[str] | None = None) -> int:
    """Serve one client until it ends; returns the exit code."""
    # Before anything slow: a signal to the whole process group is for the client to act upon.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent.end_with_parent(signal.SIGKILL)
    # Imports and loading make objects that stay: an eighth of their time would be collection.
    gc.disable()
    parser = argparse.ArgumentParser(prog="paceline-step-process")
    parser.add_argument("--fd", type=int, required=True, help="connected socket of the client")
    parser.add_argument("--heartbeat-fd", type=int, required=True, help="file of the heartbeat")
    args = parser.parse_args(argv)
    for fd in (args.fd, args.heartbeat_fd):
        os.set_inheritable(fd, False)
    link = Link(socket.socket(fileno=args.fd))
    try:
        return _serve(link, SharedHeartbeat(args.heartbeat_fd))
    except LinkClosed:
        return 0
    finally:
        link.close()


def _serve(link: Link, page: SharedHeartbeat) -> int:
    start = link.receive(None)[0]
    if not isinstance(start, Start):
        raise TypeError(f"the first message must be Start, got {type(start).__name__}")
    logging.basicConfig(level=start.log_level.upper(), format=LOG_FORMAT)
    try:
        _run(link, page, start)
    except StartFailed as error:
        return _give_up(link, error.reason, str(error), EXIT_START_FAILED)
    except DeviceBroken as error:
        return _give_up(link, "DeviceBroken", str(error), EXIT_DEVICE_BROKEN)
    except MemoryError as error:
        return _give_up(link, "OutOfMemory", f"out of memory: {error}", EXIT_START_FAILED)
    except LinkClosed:
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        log.debug("the import that failed", exc_info=True)
        message = f"the engine cannot import {package}; install `paceline[engine]`"
        return _give_up(link, "Internal", message, EXIT_START_FAILED)
    except Exception as error:
        log.exception("the step process failed")
        return _give_up(link, "Internal", f"{type(error).__name__}: {error}", EXIT_INTERNAL)
    return 0


def _run(link: Link, page: SharedHeartbeat, start: Start) -> None:
    starting = Starting(link)
    runner, model_dir = _load(start, starting)
    starting.end_phase(time.monotonic())
    settings, revision = runner.settings, start.settings_revision
    if start.settings_file:
        settings, revision = settings_file.lay_over(settings, Path(start.settings_file))
    loop = assemble(
        runner,
        settings=settings,
        clock=time.monotonic,
        publish=link.send,
        beat=page.write,
        revision=revision,
        seconds_by_phase=starting.seconds_by_phase,
    )
    # What was loaded stays: the collector need not walk it again and again.
    gc.collect()
    gc.freeze()
    gc.enable()
    info = engine_info(runner, model=start.model_name, model_dir=model_dir, revision=start.revision)
    link.send(Loaded(info, starting.seconds_by_phase))
    wait_s: float | None = 0.0
    while not loop.is_stopping:
        for message in link.receive(wait_s):
            loop.handle(message)
        wait_s = 0.0 if loop.turn() else loop.wait_s()


def _load(start: Start, starting: Starting) -> tuple[LoadedRunner, Path]:
    settings = EngineSettings.model_validate(start.settings)
    refuse_at_start(settings)
    starting.progress(StartupPhase.IMPORTING, 0.0)
    with lean_torch():
        factory = _named(start.runner_factory)
    if start.model_dir:
        model_dir = Path(start.model_dir)
    else:
        from paceline_engine.model import store

        starting.progress(StartupPhase.FETCHING, 0.0)
        model_dir = store.resolve(
            start.model,
            cache_dir=Path(start.cache_dir) if start.cache_dir else None,
            progress=starting.progress,
        )
    own: dict[str, Path] = {}
    if settings.speculative_model is not None:
        from paceline_engine.model import store

        own["draft_dir"] = store.resolve(
            settings.speculative_model,
            cache_dir=Path(start.cache_dir) if start.cache_dir else None,
            progress=starting.progress,
        )
    starting.progress(StartupPhase.LOADING, 0.0)
    return factory(model_dir, settings, starting.progress, **own), model_dir


def _named(dotted: str) -> Any:
    """What `module:name.name` names."""
    module, _, names = dotted.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def _give_up(link: Link, reason: str, message: str, exit_code: int) -> int:
    log.error("%s: %s", reason, message)
    link.send(Failed(reason, message))
    link.flush(_FLUSH_S)
    return exit_code


if __name__ == "__main__":
    leave(main())

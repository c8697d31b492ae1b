"""The operator as a process: `python -m paceline_operator`."""

import asyncio
import gc
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from paceline_operator.decide.observed import Config, Inputs
from paceline_operator.resources.config import LogFormat, OperatorConfig
from paceline_operator.shell import handlers, keys, metrics, options, session, web
from paceline_operator.shell.apply import Executor
from paceline_operator.shell.cache import Cache
from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.engines import Access, Engines, PodNetwork
from paceline_operator.shell.errors import LeaseLost, ShellError, StartRefused
from paceline_operator.shell.gather import Gatherer
from paceline_operator.shell.leader import Always, Lock
from paceline_operator.shell.port_forward import PortForwards
from paceline_operator.shell.prometheus import Prometheus
from paceline_operator.shell.queue import WorkQueue
from paceline_operator.shell.reconcile import Reconciler
from paceline_operator.shell.resync import Resync
from paceline_operator.shell.session import Session

_log = logging.getLogger(__name__)
EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - probes and Prometheus come from outside of the pod
_LOOPBACK = "127.0.0.1"
_FIELD_MANAGER = "paceline-operator"
_WATCHES_END_S = 10.0
"""Watches have so long to say why they end: kopf gives those that did not fail five seconds."""
_YOUNG = 10_000
"""New objects after which cycles are looked for; Python's 700 are those of three deployments."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to end; the status for the shell."""
    arguments = options.parser().parse_args(argv)
    try:
        found = options.read(arguments)
        _set_up_logging(found)
        asyncio.run(_Operator(found, options.uses_port_forward(arguments.engines)).run())
    except StartRefused as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except ShellError as error:
        _log.error("%s", error)
        return EXIT_FAILED
    return EXIT_OK


class _Operator:
    """All parts of one process, put together."""

    def __init__(self, found: OperatorConfig, uses_port_forward: bool) -> None:
        self._found = found
        self._keys = keys.of_config(found)
        api = Session()
        self._cluster = Cluster(api, _FIELD_MANAGER)
        self._cache = Cache(_FIELD_MANAGER)
        self._lock = self._leader()
        access: Access = PodNetwork()
        if uses_port_forward:
            access = PortForwards(api)
        self._engines = Engines(access, time.time)
        self._prometheus = _prometheus(found)
        self._gatherer = Gatherer(
            cache=self._cache,
            cluster=self._cluster,
            engines=self._engines,
            keys=self._keys,
            inputs=_inputs(found),
            config=_config(found),
            clock=time.time,
            prometheus=self._prometheus,
        )
        self._counts = metrics.Reconciles()
        reconciler = Reconciler(
            cache=self._cache,
            gatherer=self._gatherer,
            executor=Executor(
                cache=self._cache,
                cluster=self._cluster,
                engines=self._engines,
                fence=self._lock.fence,
                clock=time.time,
            ),
            clock=time.time,
            told=self._counts.told,
        )
        self._queue = WorkQueue(reconciler.reconcile, found.workers)
        self._resync = Resync(
            cluster=self._cluster,
            cache=self._cache,
            queue=self._queue,
            gatherer=self._gatherer,
            namespaces=found.watch_namespaces,
            instance=found.instance,
            period_s=found.resync_s,
        )

    async def run(self) -> None:
        """Start everything, and end everything when any part ends."""
        state = metrics.State(self._cache, self._queue, self._cluster, self._lock)
        self._counts.registry.register(state)
        host = _ALL_ADDRESSES if self._found.namespace else _LOOPBACK
        async with web.serving(
            host,
            self._found.http_port,
            is_alive=state.is_alive,
            is_ready=lambda: self._resync.is_ready,
            metrics=lambda: metrics.text(self._counts.registry),
        ):
            told_to_end = asyncio.Event()
            acting: asyncio.Task[Any] = asyncio.create_task(self._act())
            watching: asyncio.Task[Any] = asyncio.create_task(self._watch(told_to_end))
            told: asyncio.Task[Any] = asyncio.create_task(told_to_end.wait())
            tasks = (acting, watching, told)
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if told.done():
                    # A watch that failed tells it too, before its error is out.
                    acting.cancel()
                    await asyncio.wait((watching,), timeout=_WATCHES_END_S)
                ended = [task for task in tasks if task.done() and not task.cancelled()]
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._lock.release()
                await self._engines.close()
                if self._prometheus is not None:
                    await self._prometheus.close()
                await self._cluster.session.close()
            for task in ended:
                if (error := task.exception()) is not None:
                    raise _first(error)

    async def _watch(self, told_to_end: asyncio.Event) -> None:
        known = await self._resync.known_kinds()
        await handlers.watch(
            self._cache,
            self._queue,
            known,
            self._found.watch_namespaces,
            self._found.instance,
            session.login,
            told_to_end.set,
        )

    async def _act(self) -> None:
        await self._resync.known_kinds()
        await self._resync.first()
        _settle_memory()
        await self._lock.acquire()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lock.keep())
            if self._found.lease.name:
                # Who waited for the Lease has heard watches alone for a long time.
                await self._resync.first()
            group.create_task(self._resync.run())
            group.create_task(self._queue.run())
            group.create_task(self._forget_pods())

    async def _forget_pods(self) -> None:
        while True:
            await asyncio.sleep(60)
            self._engines.keep_only(self._cache.uids("Pod"))

    def _leader(self) -> Lock | Always:
        if not self._found.lease.name:
            return Always()
        if not self._found.namespace:
            raise StartRefused("lease.name needs namespace: the Lease lies in the operator's own")
        return Lock(
            self._cluster,
            namespace=self._found.namespace,
            name=self._found.lease.name,
            identity=f"{socket.gethostname()}-{os.getpid()}",
            duration_s=self._found.lease.duration_s,
        )


def _settle_memory() -> None:
    """Have the collector of cycles leave alone what lives as long as the process.

    Modules, schemas and what was listed are half a million objects, which it would walk through
    again and again while the cache grows. Cycles come from tasks and exceptions, and are few.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


def _first(error: BaseException) -> BaseException:
    """The reaction that several at once ask for: a lost Lease before anything else."""
    if isinstance(error, BaseExceptionGroup):
        lost = error.subgroup(LeaseLost)
        return _first((lost or error).exceptions[0])
    return error


def _inputs(found: OperatorConfig) -> Inputs:
    return Inputs(
        engine_image=found.engine.image,
        vllm_image=found.engine.vllm_image,
        pod_defaults=found.engine.pod_defaults,
    )


def _config(found: OperatorConfig) -> Config:
    return Config(
        instance=found.instance,
        field_manager=_FIELD_MANAGER,
        operator_namespace=found.namespace,
        operator_labels=found.operator_labels,
        is_tuning_frozen=found.tuning.frozen,
        max_changing=found.tuning.max_concurrent,
    )


def _prometheus(found: OperatorConfig) -> Prometheus | None:
    if not found.prometheus.url:
        return None
    return Prometheus(
        found.prometheus.url,
        bearer_token_file=found.prometheus.bearer_token_file,
        ca_file=found.prometheus.ca_file,
    )


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _set_up_logging(found: OperatorConfig) -> None:
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if found.log_format is LogFormat.JSON else plain)
    logging.basicConfig(handlers=[handler], level=found.log_level.value.upper(), force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)

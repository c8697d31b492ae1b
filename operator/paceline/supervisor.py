"""Replicas as processes: started, watched, started again with the settings in force, drained."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import liveness
from paceline.flag_values import carried_over, changes
from paceline.local import LocalPlan
from paceline.replicas import Replica, Replicas, get
from paceline_crds import routes
from paceline_crds.settings import EngineSettings
from paceline_engine.serve.http_stream import AnswerCut

_WATCH_S = 0.5
_TURNS_PER_READ_BACK = 4
_STABLE_S = 60.0
_MAX_BACK_OFF_S = 60.0
_LOG_TAIL_LINES = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """Private files of one `paceline run`.

    Attributes:
        folder: only its owner may read it.
        admin_token_file: token of every replica's admin port.
    """

    folder: Path
    admin_token_file: Path

    @property
    def tuning_file(self) -> Path:
        """The tuner's state, once it has one."""
        return self.folder / "tuning.json"

    def log_of(self, index: int) -> Path:
        """Where a replica's output goes."""
        return self.folder / f"replica-{index}.log"


@dataclass(slots=True, kw_only=True)
class Member:
    """One replica and its process. Mutable: owned by `Supervisor`.

    Attributes:
        has_been_ready: it has served; a replica that never has is not started again.
        is_restarted: it was started again and has not been ready since.
        num_failures: ends in a row without a stable time between them.
        num_restarts: how often it was started again.
        exit_code: set once it will not be started again.
    """

    replica: Replica
    admin_port: int = 0
    process: asyncio.subprocess.Process | None = None
    has_been_ready: bool = False
    is_restarted: bool = False
    num_failures: int = 0
    num_restarts: int = 0
    started_s: float = 0.0
    exit_code: int | None = None
    startup: Mapping[str, Any] | None = None


class Supervisor:
    """Owns the processes of all replicas.

    Attributes:
        members: in order of index.
        replicas: what the proxy picks from.
    """

    def __init__(
        self,
        plan: LocalPlan,
        files: RunFiles,
        environ: Mapping[str, str],
        report: Callable[[str], None],
    ) -> None:
        hosts = [Replica(index=i, host="127.0.0.1", port=0) for i in range(plan.num_replicas)]
        self.members = [Member(replica=replica) for replica in hosts]
        self.replicas = Replicas(hosts)
        self._plan = plan
        self._files = files
        self._environ = {**threads_env(plan.num_replicas), **environ, **plan.env}
        self._report = report
        self._last_revision = 0
        self._last_settings: EngineSettings | None = None
        self._stop = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether no process is started any more."""
        return self._stop.is_set()

    async def run(self) -> None:
        """Keep every replica running until `stop`, or until each has ended for good."""
        await asyncio.gather(*(self._keep(member) for member in self.members))

    async def watch(self) -> None:
        """Keep readiness, start-up progress and the settings in force up to date, for ever."""
        for turn in itertools.count():
            await self.replicas.probe()
            reads_settings = turn % _TURNS_PER_READ_BACK == 0
            await asyncio.gather(*(self._look_at(m, reads_settings) for m in self.members))
            await asyncio.sleep(_WATCH_S)

    def signal_all(self, number: signal.Signals) -> None:
        """Signal every running replica; SIGINT begins its drain, a second one ends the wait."""
        self.replicas.is_draining = True
        self._stop.set()
        for member in self.members:
            if member.process is not None and member.process.returncode is None:
                member.process.send_signal(number)

    def log_tail(self, index: int) -> list[str]:
        """The last lines that a replica wrote."""
        try:
            text = self._files.log_of(index).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return text.splitlines()[-_LOG_TAIL_LINES:]

    def how_to_see_settings(self, member: Member) -> str:
        """For the person: the admin port of a replica by curl and browser, and its token's file."""
        return (
            f'settings of replica {member.replica.index}: curl -H "Authorization: Bearer '
            f'$(cat {self._files.admin_token_file})" '
            f"http://127.0.0.1:{member.admin_port}{routes.ADMIN_SETTINGS}\n"
            f"  or in a browser: http://127.0.0.1:{member.admin_port}{routes.ADMIN_PAGE}"
        )

    async def _keep(self, member: Member) -> None:
        index = member.replica.index
        while not self._stop.is_set():
            code = await self._run_once(member)
            if self._stop.is_set():
                break
            if not member.has_been_ready:
                member.exit_code = code or 1
                return
            if time.monotonic() - member.started_s > _STABLE_S:
                member.num_failures = 0
            wait_s = back_off_s(member.num_failures)
            member.num_failures += 1
            self._report(
                f"replica {index} ended ({exit_text(code)}); it starts again in {wait_s:g} s with "
                f"the settings in force. Its log: {self._files.log_of(index)}"
            )
            member.is_restarted = True
            member.num_restarts += 1
            await self._pause(wait_s)
        member.exit_code = 0

    async def _run_once(self, member: Member) -> int:
        replica = member.replica
        is_alone = len(self.members) == 1
        replica.port = self._plan.port if is_alone else free_port()
        member.admin_port = free_port()
        member.started_s = time.monotonic()
        member.startup = None
        replica.num_unanswered = 0
        with self._files.log_of(replica.index).open("ab") as log:
            member.process = await asyncio.create_subprocess_exec(
                *self._command(member),
                env=self._environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the replicas through us alone
            )
        if self.is_stopping:  # the signal came while the process was being made
            member.process.send_signal(signal.SIGINT)
        code = await member.process.wait()
        replica.is_ready = False
        return code

    def _command(self, member: Member) -> list[str]:
        settings = None
        if self._last_settings is not None:
            settings = carried_over(self._plan.settings, self._last_settings)
        return [
            sys.executable,
            "-P",
            "-m",
            "paceline",
            "serve",
            *self._plan.serve_arguments(settings),
            "--host",
            member.replica.host,
            "--port",
            str(member.replica.port),
            "--admin-port",
            str(member.admin_port),
            "--admin-token-file",
            str(self._files.admin_token_file),
            "--tuning-file",
            str(self._files.tuning_file),
            "--settings-revision",
            str(self._last_revision),
            "--exit-with-parent",
            str(os.getpid()),
        ]

    async def _look_at(self, member: Member, reads_settings: bool) -> None:
        if member.process is None or member.process.returncode is not None:
            return
        if member.replica.is_ready:
            if reads_settings or not member.has_been_ready:
                await self._remember_settings(member)
            if member.is_restarted:
                member.is_restarted = False
                self._report(f"replica {member.replica.index} is ready again")
                self._report(self.how_to_see_settings(member))
            member.has_been_ready = True
            return
        if why := await liveness.why_hung(member.replica):
            self._report(f"replica {member.replica.index} {why}; its process is ended")
            with contextlib.suppress(ProcessLookupError):
                member.process.kill()
            member.replica.num_unanswered = 0
        elif not member.has_been_ready:
            status, body = await _json(member.replica.url + routes.HEALTH_STARTUP)
            member.startup = body if status else member.startup

    async def _remember_settings(self, member: Member) -> None:
        """The newest revision seen at any replica is what a restarted one gets."""
        token = self._files.admin_token_file.read_text(encoding="utf-8").strip()
        status, body = await _json(
            f"http://127.0.0.1:{member.admin_port}{routes.ADMIN_SETTINGS}", token
        )
        if status != 200 or body is None:
            return
        if self._last_settings is not None and body["revision"] < self._last_revision:
            return
        settings = EngineSettings.model_validate(body["settings"])
        if changed := changes(self._last_settings or settings, settings):
            self._report(f"settings changed, revision {body['revision']}: {changed}")
        self._last_revision, self._last_settings = body["revision"], settings

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return


async def _json(url: str, token: str = "") -> tuple[int, dict[str, Any] | None]:
    try:
        authorization = b"Bearer " + token.encode() if token else b""
        status, body = await get(url, authorization=authorization)
        return status, json.loads(body)
    except (OSError, AnswerCut, ValueError):
        return 0, None


def threads_env(num_replicas: int) -> dict[str, str]:
    """Replicas share the cores: threads that outnumber them would wait for each other.

    A single replica decides for itself, and a value of the person's own environment wins.
    """
    if num_replicas == 1:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // num_replicas))}


def back_off_s(num_failures: int) -> float:
    """Wait before the next start: 1, 2, 4 ... seconds, a minute at most."""
    return min(_MAX_BACK_OFF_S, 2.0 ** min(num_failures, 10))


def exit_text(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port

"""A whole server as a user starts it: `paceline serve` in a process of its own, on free ports."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from paceline_crds import routes
from paceline_engine.core.errors import EngineError
from paceline_engine.testing.ports import free_port


class ServerDied(EngineError):
    """The process ended, or never became ready; the message carries the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A running server.

    Attributes:
        url, admin_url: bases of the public and the admin port.
        model: the name that it serves.
        pid: of the HTTP process.
        log: what it prints.
    """

    url: str
    admin_url: str
    model: str
    pid: int
    log: Path

    def get(self, path: str) -> httpx.Response:
        """GET on the public port."""
        return httpx.get(self.url + path, timeout=30)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST on the public port; a body that is no 200 raises with its text."""
        answer = httpx.post(self.url + path, json=body, timeout=600)
        if answer.status_code != httpx.codes.OK:
            raise ServerDied(f"POST {path}: {answer.status_code} {answer.text}")
        found: dict[str, Any] = answer.json()
        return found

    def patch(self, **settings: Any) -> dict[str, Any]:
        """Change live settings, camelCase names."""
        answer = httpx.patch(f"{self.admin_url}{routes.ADMIN_SETTINGS}", json=settings, timeout=60)
        if answer.status_code != httpx.codes.OK:
            raise ServerDied(f"PATCH {settings}: {answer.status_code} {answer.text}")
        found: dict[str, Any] = answer.json()
        return found

    def metric(self, sample: str) -> float:
        """The sum of all samples of one name on /metrics."""
        total = 0.0
        for line in self.get(routes.METRICS).text.splitlines():
            name, _, value = line.rpartition(" ")
            if name.split("{")[0] == sample:
                total += float(value)
        return total


@contextmanager
def server_process(
    model: str, folder: Path, *flags: str, ready_within_s: float = 300.0
) -> Iterator[ServerProcess]:
    """Start `paceline serve` and end it with SIGTERM.

    Args:
        model: model URI.
        folder: where its log goes.
        flags: further flags.
        ready_within_s: how long download, conversion, kernels and load may take together.

    Raises:
        ServerDied: it ended or was not ready in time.
    """
    log = folder / "server.log"
    public, admin = free_port(), free_port()
    command = [sys.executable, "-m", "paceline", "serve", model, "--served-model-name", "model"]
    command += ["--port", str(public), "--admin-port", str(admin), *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and flags
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    server = ServerProcess(
        url=f"http://127.0.0.1:{public}",
        admin_url=f"http://127.0.0.1:{admin}",
        model="model",
        pid=process.pid,
        log=log,
    )
    try:
        _wait_until_ready(process, server, ready_within_s)
        yield server
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def _wait_until_ready(
    process: "subprocess.Popen[bytes]", server: ServerProcess, within_s: float
) -> None:
    give_up_s = time.monotonic() + within_s
    while not _is_ready(server):
        if process.poll() is not None or time.monotonic() > give_up_s:
            state = f"exit code {process.returncode}" if process.returncode else "not ready in time"
            tail = server.log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise ServerDied(f"paceline serve: {state}; its log ends with:\n{tail}")
        time.sleep(0.1)


def _is_ready(server: ServerProcess) -> bool:
    try:
        return server.get(routes.HEALTH_READY).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False

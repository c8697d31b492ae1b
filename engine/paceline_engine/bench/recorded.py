"""A running engine whose recording is read after each run: what its own clock saw, run by run."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from paceline_crds import routes
from paceline_engine.bench import client, serve
from paceline_engine.bench.client import Load, Mode
from paceline_engine.bench.serve import BenchFailed, BenchPlan
from paceline_engine.bench.workloads import Workload
from paceline_engine.sim import recording
from paceline_engine.sim.recording import BadRecording, Recording

_SCHEDULED = frozenset({"interference", "steady_only"})
"""Workloads whose arrivals are seconds; those of the others come at a rate, or all at once."""
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One workload as it is sent.

    Attributes:
        rate: requests a second; 0: all at once. Of no meaning to a workload with a schedule.
        limit: only the first so many requests, 0 = all.
    """

    name: str
    rate: float = 0.0
    limit: int = 0

    @property
    def load(self) -> Load:
        """When its requests are sent."""
        if self.name in _SCHEDULED:
            return Load(mode=Mode.SCHEDULE)
        return Load(mode=Mode.POISSON, rate=self.rate) if self.rate else Load(mode=Mode.BATCH)

    def made(self, plan: BenchPlan) -> Workload:
        """Its requests."""
        return serve.workload_of(replace(plan, limit=self.limit), self.name)


class RecordedEngine:
    """Mutable: it remembers how far it has read.

    Args:
        plan: target, vocabulary, seed.
        admin_url: base of the engine's admin port; admin_token: empty if it asks for none.
    """

    def __init__(self, plan: BenchPlan, admin_url: str, admin_token: str = "") -> None:
        self._plan = plan
        self._url = admin_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {admin_token}"} if admin_token else {}
        self._read_until_s = float("-inf")

    def warm_up(self, run: Run) -> None:
        """Short requests that count nowhere.

        Raises:
            BenchFailed: nothing answers.
        """
        target = self._plan.target
        if error := asyncio.run(client.warm_up(run.made(self._plan), target)):
            raise BenchFailed(f"{target.url} must answer a short request, got: {error}")
        self._new()

    def record(self, run: Run) -> Recording:
        """Run a workload on an empty prefix cache, so that none profits from the one before.

        Raises:
            BenchFailed: a request failed, or the admin port does not answer.
        """
        self._ask("POST", routes.ADMIN_RESET_PREFIX_CACHE)
        answers = asyncio.run(client.drive(run.made(self._plan), self._plan.target, run.load))
        failed = [answer.error for answer in answers if answer.error]
        if failed:
            raise BenchFailed(f"{run.name}: {len(failed)} requests failed: {failed[0]}")
        return self._new()

    def settings(self) -> dict[str, Any]:
        """Settings in force, camelCase."""
        found: dict[str, Any] = self._ask("GET", routes.ADMIN_SETTINGS)["settings"]
        return found

    def change(self, changes: Mapping[str, Any]) -> None:
        """Change live settings."""
        self._ask("PATCH", routes.ADMIN_SETTINGS, dict(changes))

    def _new(self) -> Recording:
        """What was recorded since the last call."""
        body = self._ask("GET", routes.ADMIN_RECORDING)
        try:
            found = recording.read(body, after_s=self._read_until_s)
        except BadRecording as error:
            raise BenchFailed(str(error)) from error
        self._read_until_s = found.last_arrival_s
        return found

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            answer = httpx.request(
                method, self._url + path, headers=self._headers, json=body, timeout=_TIMEOUT_S
            )
            if answer.is_error:
                raise ValueError(f"HTTP {answer.status_code}: {answer.text[:200]}")
            found: dict[str, Any] = dict(answer.json())
        except (httpx.HTTPError, httpx.InvalidURL, TypeError, ValueError) as error:
            raise BenchFailed(
                f"the admin port must answer {path}, got {error}; check --admin-url and "
                "--admin-token-file"
            ) from error
        return found

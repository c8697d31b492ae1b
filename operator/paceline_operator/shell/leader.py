"""The Lease: of several replicas the one that holds it acts, the others keep their caches warm.

Whether a Lease has run out is told by this machine's own monotonic clock: it counts from the moment
when its last change was seen, so clocks of two nodes need not agree. The holder stops acting some
time before others may begin. Even one that was paused meanwhile cannot undo anything, since each
write carries what it was planned from.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from paceline_operator.resources import objects
from paceline_operator.shell import kinds
from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.errors import ApiRefused, ApiUnreachable, LeaseLost

_log = logging.getLogger(__name__)
_RENEWALS = 3
"""Tries within the time that a Lease lasts."""
_MARGIN = 0.8
"""Share of that time after which the holder stops to act."""


class Always:
    """No lock: the only operator, on a laptop."""

    def fence(self) -> None:
        """It may always write."""

    def is_leader(self) -> bool:
        """It always is."""
        return True

    async def acquire(self) -> None:
        """Nothing to wait for."""

    async def keep(self) -> None:
        """Never lost."""
        await asyncio.Event().wait()

    async def release(self) -> None:
        """Nothing to give back."""


class Lock:
    """One Lease and one identity. Mutable."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        name: str,
        identity: str,
        duration_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration_s = duration_s
        self._clock = clock
        self._held_until = float("-inf")
        self._seen: tuple[str, float] = ("", float("-inf"))

    def is_leader(self) -> bool:
        """Whether this process may act now."""
        return self._clock() < self._held_until

    def fence(self) -> None:
        """Called before each write.

        Raises:
            LeaseLost: it was not renewed in time.
        """
        if not self.is_leader():
            raise LeaseLost(f"the Lease {self._namespace}/{self._name} was not renewed in time")

    async def acquire(self) -> None:
        """Wait until this process is the leader."""
        while not await self.attempt():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(self._duration_s / _RENEWALS)
        _log.info("%s is the leader", self._identity)

    async def keep(self) -> None:
        """Renew until it is lost.

        Raises:
            LeaseLost: it could not be renewed in time, or somebody else has it.
        """
        while True:
            await asyncio.sleep(self._duration_s / _RENEWALS)
            if not await self.attempt():
                self.fence()

    async def release(self) -> None:
        """Give it back, so that the next leader need not wait."""
        if not self.is_leader():
            return
        self._held_until = float("-inf")
        try:
            live = await self._cluster.get(kinds.LEASE, self._namespace, self._name)
            if live is not None and self._holder(live) == self._identity:
                spec = {
                    **objects.mapping(live, "spec"),
                    "holderIdentity": "",
                    "leaseDurationSeconds": 1,
                }
                await self._cluster.write_lease({**live, "spec": spec})
        except (ApiRefused, ApiUnreachable) as error:
            _log.info("the Lease could not be given back: %s", error)

    async def attempt(self) -> bool:
        """Take or renew it; False if somebody else has it or the server does not answer."""
        began = self._clock()
        try:
            live = await self._cluster.get(kinds.LEASE, self._namespace, self._name)
            if live is not None and not self._may_take(live):
                self._held_until = float("-inf")
                return False
            await self._cluster.write_lease(self._wanted(live))
        except (ApiRefused, ApiUnreachable) as error:
            _log.warning("the Lease could not be renewed: %s", error)
            return False
        # Others count from when they see the write, which is never before it was begun.
        self._held_until = began + self._duration_s * _MARGIN
        return True

    def _may_take(self, live: dict[str, Any]) -> bool:
        holder = self._holder(live)
        if holder in {"", self._identity}:
            return True
        version = objects.text(live, "metadata", "resourceVersion")
        if version != self._seen[0]:
            self._seen = (version, self._clock())
        lasts_s = objects.whole(live, "spec", "leaseDurationSeconds", default=1)
        return self._clock() - self._seen[1] > lasts_s

    def _holder(self, live: dict[str, Any]) -> str:
        return objects.text(live, "spec", "holderIdentity")

    def _wanted(self, live: dict[str, Any] | None) -> dict[str, Any]:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = objects.mapping(live, "spec")
        is_mine = before.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, int(self._duration_s)),
            "acquireTime": before.get("acquireTime", stamp) if is_mine else stamp,
            "renewTime": stamp,
            "leaseTransitions": objects.whole(before, "leaseTransitions") + (not is_mine),
        }
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        if live is not None:
            metadata |= {
                "uid": objects.uid(live),
                "resourceVersion": objects.text(live, "metadata", "resourceVersion"),
            }
        return {
            "apiVersion": kinds.LEASE.api_version,
            "kind": kinds.LEASE.name,
            "metadata": metadata,
            "spec": spec,
        }

"""Whole lists, at the start and every few minutes: watches give hints, lists give certainty.

A watch says neither when its first list has ended nor what was deleted while it was down; so the
operator lists each kind itself and merges that into what it has.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_crds import crd
from paceline_operator.decide.conditions import definition_is_older
from paceline_operator.render import names
from paceline_operator.resources.parse import DEFAULT_INSTANCE, INSTANCE_LABEL
from paceline_operator.shell import kinds
from paceline_operator.shell.cache import Cache
from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.errors import ApiRefused, ApiUnreachable
from paceline_operator.shell.gather import Gatherer
from paceline_operator.shell.kinds import Kind
from paceline_operator.shell.queue import WorkQueue

_log = logging.getLogger(__name__)
FIRST_RETRY_S = 1.0
_MAX_RETRY_S = 30.0


def selector_of(kind: Kind, instance: str) -> str:
    """Which objects of a kind matter, as a label selector for lists and watches.

    Children of any install: one that has a name we want must be seen. The label of an
    LLMDeployment may be absent for the default install, which no selector can say.
    """
    if kind is not kinds.LLM_DEPLOYMENT:
        return names.DEPLOYMENT_LABEL
    return "" if instance == DEFAULT_INSTANCE else f"{INSTANCE_LABEL}={instance}"


@dataclass(slots=True, kw_only=True)
class Resync:
    """Lists everything. Mutable.

    Attributes:
        namespaces: those that are looked at; empty: all.
        is_ready: the first lists of all kinds are done.
    """

    cluster: Cluster
    cache: Cache
    queue: WorkQueue
    gatherer: Gatherer
    namespaces: Sequence[str]
    instance: str
    period_s: float
    is_ready: bool = False

    async def known_kinds(self) -> tuple[Kind, ...]:
        """Kinds that this cluster serves; waits until it serves LLMDeployments."""
        wait_s = FIRST_RETRY_S
        while True:
            try:
                if await self.cluster.knows(kinds.LLM_DEPLOYMENT):
                    return await self._known()
                _log.warning("the cluster knows no LLMDeployments: install the CRD; waiting")
            except (ApiRefused, ApiUnreachable) as error:
                _log.warning("the API server could not be asked for its kinds: %s", error)
            await asyncio.sleep(wait_s)
            wait_s = min(_MAX_RETRY_S, wait_s * 2)

    async def first(self) -> None:
        """List until every kind was listed once."""
        wait_s = FIRST_RETRY_S
        while not await self.once():
            await asyncio.sleep(wait_s)
            wait_s = min(_MAX_RETRY_S, wait_s * 2)
        self.is_ready = True
        count = self.cache.count(kinds.LLM_DEPLOYMENT.name)
        _log.info("everything was listed: %d LLMDeployments", count)

    async def run(self) -> None:
        """List again and again; every deployment is looked at each time."""
        while True:
            await asyncio.sleep(self.period_s)
            await self.once()

    async def once(self) -> bool:
        """List each kind; returns whether all lists came."""
        is_whole = True
        try:
            found = await self._known()
        except (ApiRefused, ApiUnreachable) as error:
            _log.warning("the API server could not be asked for its kinds: %s", error)
            return False
        for kind in found:
            for namespace in self.namespaces or ("",):
                is_whole &= await self._list(kind, namespace)
        for key in self.cache.deployments():
            self.queue.add(key)
        return is_whole

    async def _list(self, kind: Kind, namespace: str) -> bool:
        selector = selector_of(kind, self.instance)
        try:
            listing = await self.cluster.list_all(kind, namespace, selector)
        except (ApiRefused, ApiUnreachable) as error:
            if (
                kind.name in kinds.OPTIONAL
                and isinstance(error, ApiRefused)
                and error.code in {403, 404}
            ):
                return True
            _log.warning("%s could not be listed: %s", kind.plural, error)
            return False
        for key in self.cache.merge(kind.name, listing, namespace):
            self.queue.add(key)
        return True

    async def _schema_version(self) -> int | None:
        served = await self.cluster.schema_version()
        if served is not None and served < crd.SCHEMA_VERSION:
            _log.warning("%s", definition_is_older(served))
        return served

    async def _known(self) -> tuple[Kind, ...]:
        optional = [kinds.of(name) for name in kinds.OPTIONAL]
        found = frozenset([kind.name for kind in optional if await self.cluster.knows(kind)])
        self.gatherer.know(found, await self._schema_version())
        return tuple(
            kind for kind in kinds.WATCHED if kind.name not in kinds.OPTIONAL or kind.name in found
        )

"""The whole shell over a cluster in memory: real cache, gathering, applying; time that is moved.

An operator can be killed at any request and started again with an empty memory. Watch events can be
lost, late or told twice; lists repair what they leave out.
"""

import asyncio
import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline_operator.decide.observed import EngineReading
from paceline_operator.resources import objects
from paceline_operator.shell import handlers, kinds
from paceline_operator.shell.apply import Executor
from paceline_operator.shell.cache import Cache, Key
from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.errors import (
    ApiUnreachable,
    EngineRefused,
    EngineUnreachable,
    LeaseLost,
)
from paceline_operator.shell.gather import Gatherer
from paceline_operator.shell.keys import MasterKeys
from paceline_operator.shell.queue import WorkQueue
from paceline_operator.shell.reconcile import Reconciler
from paceline_operator.shell.resync import Resync
from paceline_operator.testing.api import NAMESPACE, FakeApi, Request
from paceline_operator.testing.store import Object, Refused
from paceline_operator.testing.world import World

Deliver = Callable[[Mapping[str, Any]], int]
"""How often an event of a watch is told: 0 loses it, 2 tells it twice."""
MAX_ROUNDS = 300
RESYNC_ROUNDS = 8


class NetworkedWorld(World):
    """A World whose pods have addresses, as a shell needs them to ask an engine."""

    def _start(self, pod: Object) -> None:
        super()._start(pod)
        if objects.name(pod) in self.engines:
            pod["status"]["podIP"] = "10.0.0.9"
            if "containerStatuses" not in pod["status"]:
                pod["status"]["containerStatuses"] = [{"name": "engine", "state": {"running": {}}}]
            self.store.touch(pod)


class WorldEngines:
    """The admin ports of a World's pods."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def read(
        self,
        pod: Mapping[str, Any],
        tokens: tuple[str, ...],  # noqa: ARG002 - as the real client
        *,
        with_requests: bool = False,  # noqa: ARG002
    ) -> EngineReading:
        """What an engine says."""
        engine = self._world.engines.get(objects.name(pod))
        if engine is None:
            return EngineReading(
                pod_uid=objects.uid(pod), read_at=self._world.now, is_reachable=False
            )
        return engine.reading(objects.uid(pod), self._world.now)

    async def read_vllm(self, pod: Mapping[str, Any]) -> EngineReading:
        """A stock vLLM is asked in the same way here."""
        return await self.read(pod, ())

    async def patch_settings(
        self,
        pod: Mapping[str, Any],
        tokens: tuple[str, ...],  # noqa: ARG002
        changes: Mapping[str, Any],
        revision: int,
    ) -> None:
        """Change live settings.

        Raises:
            EngineRefused: by the engine's rules.
        """
        try:
            self._engine(pod).patch(dict(changes), revision)
        except Refused as refused:
            raise EngineRefused(refused.code, str(refused)) from refused

    async def drain(
        self,
        pod: Mapping[str, Any],
        tokens: tuple[str, ...],  # noqa: ARG002
        propagation_s: float,
    ) -> None:
        """Begin a drain."""
        self._engine(pod).drain(propagation_s, self._world.now)

    def _engine(self, pod: Mapping[str, Any]) -> Any:
        engine = self._world.engines.get(objects.name(pod))
        if engine is None:
            raise EngineUnreachable(f"{objects.name(pod)} has gone")
        return engine


@dataclass(slots=True)
class Operator:
    """One process of the operator; what it remembers dies with it."""

    cache: Cache
    queue: WorkQueue
    reconciler: Reconciler
    resync: Resync


@dataclass(slots=True)
class Rig:
    """A World, a fake API server over it, and the operator that is alive now. Mutable.

    Attributes:
        deliver: how watch events reach the operator.
        dies_at: number of a write at which the process dies: before it, or (with `dies_after`)
            when it was done and its answer is on the way.
        num_writes: writes sent by all operators so far.
    """

    world: World
    key_file: Path
    deliver: Deliver = lambda _event: 1
    dies_at: int | None = None
    dies_after: bool = False
    num_writes: int = 0
    num_deaths: int = 0
    api: FakeApi = field(init=False)
    operator: Operator = field(init=False)
    _versions: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.api = FakeApi(self.world.store, lambda: self.world.now)
        self.operator = self._operator()

    @property
    def key(self) -> Key:
        """Of the World's deployment."""
        return NAMESPACE, self.world.name

    def settle(self) -> None:
        """Let operator and cluster act until both are still."""
        asyncio.run(self._settle())

    def reconcile(self) -> None:
        """One list of everything and one look."""
        asyncio.run(self._reconcile(lists=True))

    async def _settle(self) -> None:
        still = 0
        for number in range(MAX_ROUNDS):
            before = self._fingerprint()
            again = await self._reconcile(lists=number % RESYNC_ROUNDS == 0)
            self.world.tick()
            self._tell()
            if before != self._fingerprint():
                still = 0
                continue
            if again is not None and again > 0:
                self.world.tick(again)
                self._tell()
            still += 1
            if still > RESYNC_ROUNDS + 1:  # a list has come and changed nothing
                return
        raise AssertionError(f"not settled after {MAX_ROUNDS} rounds: {self.api.log[-20:]}")

    async def _reconcile(self, *, lists: bool) -> float | None:
        try:
            if lists:
                await self.operator.resync.once()
            again = await self.operator.reconciler.reconcile(self.key)
        except LeaseLost:
            self.num_deaths += 1
            self.operator = self._operator()
            await self.operator.resync.once()
            return 0.0
        except ApiUnreachable:
            return 0.5
        finally:
            self._tell()
        return again

    def _fence(self) -> None:
        """The process dies here when its time has come."""

    def _count(self, request: Request) -> None:
        """Each write is counted; the one whose number was drawn kills the process."""
        if not request.is_write:
            return
        self.num_writes += 1
        if self.num_writes == self.dies_at and not self.dies_after:
            raise LeaseLost("killed before a write")

    def _operator(self) -> Operator:
        world, rig = self.world, self

        class Mortal(FakeApi):
            """Requests of a process that may die at any of them."""

            async def request(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
                asked = Request(method, path, {}, None, "")
                rig._count(asked)
                answer = await rig.api.request(method, path, **rest)
                if asked.is_write and rig.num_writes == rig.dies_at and rig.dies_after:
                    raise LeaseLost("killed after a write")
                return answer

        cluster = Cluster(Mortal(world.store, lambda: world.now), world.config.field_manager)
        cache = Cache(world.config.field_manager)
        gatherer = Gatherer(
            cache=cache,
            cluster=cluster,
            engines=WorldEngines(world),
            keys=MasterKeys(self.key_file),
            inputs=world.inputs,
            config=world.config,
            clock=lambda: world.now,
        )
        executor = Executor(
            cache=cache,
            cluster=cluster,
            engines=WorldEngines(world),
            fence=self._fence,
            clock=lambda: world.now,
        )
        reconciler = Reconciler(
            cache=cache, gatherer=gatherer, executor=executor, clock=lambda: world.now
        )
        queue = WorkQueue(reconciler.reconcile, 1, lambda: world.now)
        resync = Resync(
            cluster=cluster,
            cache=cache,
            queue=queue,
            gatherer=gatherer,
            namespaces=(),
            instance=world.config.instance,
            period_s=300,
        )
        return Operator(cache, queue, reconciler, resync)

    def _tell(self) -> None:
        """Deliver what has changed since the last time, as watches do."""
        now: dict[tuple[str, str], Mapping[str, Any]] = {
            place: item
            for place, item in self.world.store.objects.items()
            if any(place[0] == kind.name for kind in kinds.WATCHED)
        }
        for place, item in now.items():
            before = self._versions.get(place)
            if before is None or _version(before) != _version(item):
                self._deliver(place[0], "MODIFIED", item)
        for place, item in self._versions.items():
            if place not in now:
                version = str(self.world.store.version + 1)
                last = {**item, "metadata": {**item["metadata"], "resourceVersion": version}}
                self._deliver(place[0], "DELETED", last)
        self._versions = {
            place: {"metadata": dict(item["metadata"])} for place, item in now.items()
        }

    def _deliver(self, kind: str, change: str, item: Mapping[str, Any]) -> None:
        event = {"type": change, "object": copy.deepcopy(dict(item))}
        for _ in range(self.deliver(event)):
            handlers.hear(self.operator.cache, self.operator.queue, kind, event)

    def _fingerprint(self) -> str:
        engines = {
            name: (engine.drain_phase, engine.is_loaded(self.world.now), engine.revision)
            for name, engine in self.world.engines.items()
        }
        versions = {place: _version(item) for place, item in self.world.store.objects.items()}
        return f"{sorted(versions.items())} {sorted(engines.items())}"


def unreliable(seed: int) -> Deliver:
    """Watches that lose a third of what happens and tell a third twice."""
    dice = random.Random(seed)  # noqa: S311 - a test's dice
    return lambda _event: dice.choice((0, 1, 2))


def _version(item: Mapping[str, Any]) -> str:
    return objects.text(item, "metadata", "resourceVersion")

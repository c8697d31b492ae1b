"""What a plan may look at: from the cache, and from the engines themselves."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from paceline_operator.decide.observed import (
    CHILD_KINDS,
    Config,
    EngineReading,
    Inputs,
    Measured,
    Observed,
    PodEvent,
)
from paceline_operator.decide.tuning import asking
from paceline_operator.decide.tuning.asking import Question
from paceline_operator.render import names
from paceline_operator.resources import objects
from paceline_operator.resources.objects import Object
from paceline_operator.resources.parse import DEFAULT_INSTANCE, INSTANCE_LABEL
from paceline_operator.shell import keys, kinds
from paceline_operator.shell.cache import Cache, Key
from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.errors import ApiRefused
from paceline_operator.shell.keys import MasterKeys
from paceline_operator.shell.memory import Memory

_log = logging.getLogger(__name__)
STARTING_S = 5.0
"""How often an engine that starts is asked how far it is: no event tells it."""
MOUNTING_S = 10.0
"""A pod without a container after so long is looked up in the cluster's warnings."""
_MAX_AT_ONCE = 32


class EngineClient(Protocol):
    """The admin ports as gathering and applying use them."""

    async def read(
        self, pod: Object, tokens: tuple[str, ...], *, with_requests: bool = False
    ) -> EngineReading:
        """What an engine says."""

    async def read_vllm(self, pod: Object) -> EngineReading:
        """What a stock vLLM says."""

    async def patch_settings(
        self, pod: Object, tokens: tuple[str, ...], changes: Mapping[str, Any], revision: int
    ) -> None:
        """Change live settings."""

    async def drain(self, pod: Object, tokens: tuple[str, ...], propagation_s: float) -> None:
        """Begin a drain."""


class Measurer(Protocol):
    """Prometheus as gathering uses it."""

    async def measure(self, questions: Iterable[Question]) -> Measured:
        """Samples of the windows that are due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What was seen, and when to look again although no event will tell."""

    observed: Observed
    tokens: tuple[str, ...]
    look_again_s: float | None


@dataclass(slots=True, kw_only=True)
class Gatherer:
    """Puts an Observed together.

    Attributes:
        config: `known_kinds` and `schema_version` follow what the cluster serves.
        prometheus: None if none is configured: then nothing is measured.
    """

    cache: Cache
    cluster: Cluster
    engines: EngineClient
    keys: MasterKeys
    inputs: Inputs
    config: Config
    clock: Callable[[], float]
    prometheus: Measurer | None = None

    def know(self, found: frozenset[str], schema_version: int | None) -> None:
        """The optional kinds and the schema of LLMDeployments that the cluster serves by now."""
        if (found, schema_version) != (self.config.known_kinds, self.config.schema_version):
            self.config = replace(self.config, known_kinds=found, schema_version=schema_version)

    def is_ours(self, deployment: Object) -> bool:
        """Whether this install takes it."""
        label = objects.labels(deployment).get(INSTANCE_LABEL, DEFAULT_INSTANCE)
        return label == self.config.instance

    async def gather(self, key: Key, memory: Memory) -> Gathered | None:
        """Everything about one LLMDeployment, None if there is nothing to do for it."""
        deployment = self.cache.deployment(key)
        if deployment is None or objects.is_deleted(deployment) or not self.is_ours(deployment):
            return None
        pods = self.cache.family(kinds.POD.name, key)
        children = {kind: self.cache.family(kind, key) for kind in CHILD_KINDS}
        tokens = self.keys.tokens(deployment)
        some_leave = _some_leave(deployment, children["Deployment"], pods)
        readings = await self._readings(pods, tokens, with_requests=some_leave)
        now = self.clock()
        events = await self._warnings(key[0], pods, now)
        observed = Observed(
            deployment=deployment,
            children=children,
            pods=pods,
            readings=readings,
            inputs=self.inputs,
            config=self.config,
            admin_token_digests=keys.digests(tokens),
            failures=memory.shown_failures(),
            rewrites=memory.rewrites(now),
            events=events,
            measured=await self._measured(deployment, pods, now),
            num_changing=self.cache.num_changing(key),
        )
        return Gathered(observed=observed, tokens=tokens, look_again_s=_look_again(pods))

    async def _measured(self, deployment: Object, pods: tuple[Object, ...], now: float) -> Measured:
        if self.prometheus is None:
            return Measured()
        return await self.prometheus.measure(asking.questions(deployment, pods, now))

    async def _readings(
        self, pods: tuple[Object, ...], tokens: tuple[str, ...], *, with_requests: bool
    ) -> dict[str, EngineReading]:
        slots = asyncio.Semaphore(_MAX_AT_ONCE)

        async def ask(pod: Object) -> EngineReading:
            async with slots:
                if _is_vllm(pod):
                    return await self.engines.read_vllm(pod)
                return await self.engines.read(pod, tokens, with_requests=with_requests)

        asked = [pod for pod in pods if _runs(pod) and not _has_secret_api(pod)]
        found = await asyncio.gather(*(ask(pod) for pod in asked))
        return {objects.name(pod): reading for pod, reading in zip(asked, found, strict=True)}

    async def _warnings(
        self, namespace: str, pods: tuple[Object, ...], now: float
    ) -> tuple[PodEvent, ...]:
        found: list[PodEvent] = []
        for pod in pods:
            if _is_mounting(pod) and now - objects.created_at(pod) >= MOUNTING_S:
                try:
                    found += await self.cluster.pod_warnings(namespace, objects.uid(pod))
                except ApiRefused as refused:
                    # They only explain; everything else is done without the right to read them.
                    _log.info("warnings about %s cannot be read: %s", objects.name(pod), refused)
        return tuple(found)


def _runs(pod: Object) -> bool:
    """Whether its engine may be asked."""
    if objects.is_deleted(pod) or not objects.text(pod, "status", "podIP"):
        return False
    statuses = objects.items(pod, "status", "containerStatuses")
    return any(objects.at(status, "state", "running") is not None for status in statuses)


def _is_ready(pod: Object) -> bool:
    return objects.condition(pod, "Ready").get("status") == "True"


def _is_mounting(pod: Object) -> bool:
    """Placed on a node, and no container has begun."""
    is_placed = objects.condition(pod, "PodScheduled").get("status") == "True"
    has_pending_phase = objects.text(pod, "status", "phase") == "Pending"
    return is_placed and has_pending_phase and not objects.is_deleted(pod)


def _look_again(pods: tuple[Object, ...]) -> float | None:
    if any(_runs(pod) and not _is_ready(pod) for pod in pods):
        return STARTING_S
    return MOUNTING_S if any(_is_mounting(pod) for pod in pods) else None


def _some_leave(deployment: Object, children: tuple[Object, ...], pods: tuple[Object, ...]) -> bool:
    """Whether it matters how many requests engines have: a long list that is not asked for idly."""
    wanted = objects.whole(deployment, "spec", "replicas", default=1)
    active = [pod for pod in pods if not objects.is_deleted(pod)]
    is_marked = any(objects.annotation(pod, names.RETIRING_ANNOTATION) for pod in active)
    return len(children) > 1 or len(active) > wanted or is_marked


def _is_vllm(pod: Object) -> bool:
    containers = objects.items(pod, "spec", "containers")
    return any(item.get("command") == ["vllm", "serve"] for item in containers)


def _has_secret_api(pod: Object) -> bool:
    """A stock vLLM with an API key, which the operator does not know: nobody is asked."""
    return _is_vllm(pod) and any(
        variable.get("name") == "VLLM_API_KEY"
        for container in objects.items(pod, "spec", "containers")
        for variable in objects.items(container, "env")
    )

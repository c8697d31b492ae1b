"""The operator's own metrics, and whether it is ready and alive."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline_operator.resources import objects
from paceline_operator.shell import kinds
from paceline_operator.shell.cache import Cache
from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.leader import Always, Lock
from paceline_operator.shell.queue import WorkQueue

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STUCK_S = 300.0
"""Work on one deployment that takes longer hangs: every request has its own time-out."""


@dataclass(slots=True)
class Reconciles:
    """Counts reconciles. Mutable."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    _seconds: Histogram = field(init=False)
    _results: Counter = field(init=False)

    def __post_init__(self) -> None:
        ProcessCollector(registry=self.registry)
        self._seconds = Histogram(
            "paceline_operator_reconcile_seconds",
            "Duration of one look at one LLMDeployment, its writes included.",
            buckets=_BOUNDS,
            registry=self.registry,
        )
        self._results = Counter(
            "paceline_operator_reconciles",
            "Looks at LLMDeployments by what came of them.",
            ("result",),
            registry=self.registry,
        )
        for result in ("unchanged", "written", "refused", "conflict", "gone", "failed"):
            self._results.labels(result)

    def told(self, seconds: float, result: str) -> None:
        """One reconcile has ended."""
        self._seconds.observe(seconds)
        self._results.labels(result).inc()


class State(Collector):
    """What is read when somebody asks."""

    def __init__(
        self, cache: Cache, queue: WorkQueue, cluster: Cluster, leader: Lock | Always
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._cluster = cluster
        self._leader = leader

    def is_alive(self) -> bool:
        """Whether work goes on."""
        return self._queue.stuck_s() < STUCK_S

    def collect(self) -> Iterator[Metric]:
        """All of it."""
        yield GaugeMetricFamily(
            "paceline_operator_queue_length",
            "LLMDeployments that wait to be looked at now, or are being looked at.",
            len(self._queue),
        )
        yield GaugeMetricFamily(
            "paceline_operator_is_leader",
            "Whether this replica acts.",
            int(self._leader.is_leader()),
        )
        written = CounterMetricFamily(
            "paceline_operator_api_writes",
            "Write requests sent to the API server.",
            labels=("kind",),
        )
        for kind, number in sorted(self._cluster.num_writes.items()):
            written.add_metric((kind,), number)
        yield written
        known = GaugeMetricFamily(
            "paceline_operator_objects", "Objects in the cache.", labels=("kind",)
        )
        for watched in kinds.WATCHED:
            known.add_metric((watched.name,), self._cache.count(watched.name))
        yield known
        yield self._readiness()
        yield self._down()

    def _readiness(self) -> Metric:
        counts = {"True": 0, "False": 0, "Unknown": 0}
        for key in self._cache.deployments():
            status = objects.condition(self._cache.deployment(key) or {}, "Ready").get("status")
            counts[status if status in counts else "Unknown"] += 1
        found = GaugeMetricFamily(
            "paceline_operator_deployments",
            "LLMDeployments by the status of their condition Ready.",
            labels=("ready",),
        )
        for status, number in counts.items():
            found.add_metric((status,), number)
        return found

    def _down(self) -> Metric:
        """Only those that are down have a line: their number bounds that of the series."""
        found = GaugeMetricFamily(
            "paceline_operator_deployment_down",
            "1 for each LLMDeployment with a failure (Degraded) of which no pod can serve.",
            labels=("deployment_namespace", "deployment"),
        )
        for key in self._cache.deployments():
            deployment = self._cache.deployment(key) or {}
            is_failing = objects.condition(deployment, "Degraded").get("status") == "True"
            serves = objects.condition(deployment, "Available").get("status") == "True"
            if is_failing and not serves:
                found.add_metric(key, 1)
        return found


def text(registry: CollectorRegistry) -> bytes:
    """In Prometheus' format."""
    return generate_latest(registry)

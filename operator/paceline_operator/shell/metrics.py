"""The operator's own metrics, and whether it is ready and alive."""

from collections.abc import Iterator, Mapping
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

from paceline_crds.operator_metrics import (
    API_WRITES,
    DEPLOYMENT_DOWN,
    DEPLOYMENTS,
    IS_LEADER,
    OBJECTS,
    OPERATOR_METRICS,
    QUEUE_LENGTH,
    READY_STATUSES,
    RECONCILE_RESULTS,
    RECONCILE_SECONDS,
    RECONCILES,
)
from paceline_crds.status import ConditionType
from paceline_operator.resources import objects
from paceline_operator.shell import kinds
from paceline_operator.shell.cache import Cache
from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.leader import Always, Lock
from paceline_operator.shell.queue import WorkQueue

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
        seconds, results = OPERATOR_METRICS[RECONCILE_SECONDS], OPERATOR_METRICS[RECONCILES]
        self._seconds = Histogram(
            seconds.name, seconds.help, buckets=seconds.buckets, registry=self.registry
        )
        self._results = Counter(results.name, results.help, results.labels, registry=self.registry)
        for result in RECONCILE_RESULTS:
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
        yield _gauge(QUEUE_LENGTH, {(): len(self._queue)})
        yield _gauge(IS_LEADER, {(): int(self._leader.is_leader())})
        writes = OPERATOR_METRICS[API_WRITES]
        written = CounterMetricFamily(writes.name, writes.help, labels=writes.labels)
        for kind, number in sorted(self._cluster.num_writes.items()):
            written.add_metric((kind,), number)
        yield written
        yield _gauge(
            OBJECTS, {(kind.name,): self._cache.count(kind.name) for kind in kinds.WATCHED}
        )
        deployments = [
            (key, self._cache.deployment(key) or {}) for key in self._cache.deployments()
        ]
        ready = [_status(deployment, ConditionType.READY) for _, deployment in deployments]
        yield _gauge(DEPLOYMENTS, {(status,): ready.count(status) for status in READY_STATUSES})
        # Only those that are down have a line: their number bounds that of the series.
        yield _gauge(DEPLOYMENT_DOWN, {key: 1 for key, item in deployments if _is_down(item)})


def _gauge(name: str, values: Mapping[tuple[str, ...], float]) -> Metric:
    """A family with a value for each combination of its labels."""
    declared = OPERATOR_METRICS[name]
    found = GaugeMetricFamily(name, declared.help, labels=declared.labels)
    for labels, value in values.items():
        found.add_metric(labels, value)
    return found


def _status(deployment: objects.Object, kind: ConditionType) -> str:
    status = objects.condition(deployment, kind).get("status")
    return status if status in READY_STATUSES else "Unknown"


def _is_down(deployment: objects.Object) -> bool:
    return (
        _status(deployment, ConditionType.DEGRADED) == "True"
        and _status(deployment, ConditionType.AVAILABLE) != "True"
    )


def text(registry: CollectorRegistry) -> bytes:
    """In Prometheus' format."""
    return generate_latest(registry)

"""`/metrics`: a snapshot of the recorder as Prometheus text, under the names of the contract."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from paceline_crds import metrics
from paceline_crds.metrics import COMMON_LABELS, METRICS, Kind, Metric
from paceline_engine.core.snapshot import HistogramData, Labels, StatsSnapshot

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFacts:
    """What the HTTP process knows and the recorder does not.

    Attributes:
        model_name: the served name; engine: which engine of this address ("0" for the only one).
        is_draining: no longer ready, being emptied.
        startup_seconds: phases of the start that are over.
        unix_s: wall-clock time of this answer.
    """

    model_name: str
    engine: str = "0"
    is_draining: bool = False
    startup_seconds: Mapping[str, float] = field(default_factory=dict)
    unix_s: float = 0.0


def render(snapshot: StatsSnapshot, facts: ServingFacts) -> bytes:
    """The page, to be sent as `CONTENT_TYPE` whatever format the scraper would like best.

    The other formats are wrong for these names: the client library writes colons as underscores
    there, in samples but not in their TYPE lines, and OpenMetrics forbids a histogram in `_total`.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_EngineCollector(snapshot, facts))
    ProcessCollector(registry=registry)  # process_start_time_seconds tells a restart
    return generate_latest(registry)


class _EngineCollector(Collector):
    """One scrape's worth of families."""

    def __init__(self, snapshot: StatsSnapshot, facts: ServingFacts) -> None:
        self._snapshot = snapshot
        self._common = (facts.model_name, facts.engine)
        self._values = dict(snapshot.values) | _serving_values(facts)

    def collect(self) -> Iterator[Family]:
        for metric in METRICS.values():
            source = metric.alias_of or metric.name
            if metric.kind is Kind.HISTOGRAM:
                yield self._histogram(metric, self._snapshot.histogram(source))
            elif series := self._values.get(source):
                yield self._scalar(metric, series)

    def _scalar(self, metric: Metric, series: Mapping[Labels, float]) -> Family:
        labels = [*COMMON_LABELS, *metric.labels]
        kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=labels)
        for key, value in series.items():
            family.add_metric([*self._common, *key], value)
        return family

    def _histogram(self, metric: Metric, data: HistogramData) -> Family:
        family = HistogramMetricFamily(metric.name, metric.help, labels=COMMON_LABELS)
        buckets = list(_cumulative(metric.buckets, data.counts))
        family.add_metric(self._common, buckets=buckets, sum_value=data.sum)
        return family


def _cumulative(bounds: Iterable[float], counts: Iterable[int]) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip((*bounds, inf), counts, strict=True):
        total += count
        yield "+Inf" if bound == inf else str(bound), float(total)


def _serving_values(facts: ServingFacts) -> dict[str, dict[Labels, float]]:
    values: dict[str, dict[Labels, float]] = {
        metrics.DRAINING: {(): float(facts.is_draining)},
        metrics.LORA_REQUESTS: {("0", "", ""): facts.unix_s},
    }
    if facts.startup_seconds:
        values[metrics.STARTUP_SECONDS] = {
            (phase,): seconds for phase, seconds in facts.startup_seconds.items()
        }
    return values

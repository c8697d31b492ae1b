"""`/metrics`: a snapshot of the recorder as Prometheus text, under the names of the contract.

The page is written here, not by prometheus_client, because endpoint pickers ask for it many times a
second: the library's page took 13.6 ms of the process that also streams answers, this one 1.2 ms
(best of 30). The library still gives the metrics of the process. The format is always the classic
text: in the newer ones a colon is no letter of a name, and a histogram may not end in `_total`.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

from fastapi import Response
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from paceline_crds import metrics
from paceline_crds.metrics import COMMON_LABELS, METRICS, Kind, Metric
from paceline_engine.core.snapshot import HistogramData, Labels, StatsSnapshot
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.step.engine_client import EngineClient

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


def answer(client: EngineClient, model_name: str, drain: Drain) -> Response:
    """An engine's page, as both ports give it."""
    facts = ServingFacts(
        model_name=model_name,
        is_draining=not drain.is_ready,
        startup_seconds=client.startup.seconds_by_phase,
        unix_s=time.time(),
    )
    return Response(render(client.stats, facts), headers={"content-type": CONTENT_TYPE})


def render(snapshot: StatsSnapshot, facts: ServingFacts) -> bytes:
    """The page, to be sent as `CONTENT_TYPE` whatever format the scraper would like best."""
    common = (facts.model_name, facts.engine)
    values = dict(snapshot.values) | _serving_values(facts)
    lines: list[str] = []
    for metric in METRICS.values():
        source = metric.alias_of or metric.name
        if metric.kind is Kind.HISTOGRAM:
            lines += _histogram_lines(metric, common, snapshot.histogram(source))
        elif series := values.get(source):
            lines += _scalar_lines(metric, common, series)
    return "".join(lines).encode() + _process_page()


def _process_page() -> bytes:
    """Metrics of this process; process_start_time_seconds tells a restart."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def _scalar_lines(metric: Metric, common: Labels, series: Mapping[Labels, float]) -> list[str]:
    names = (*COMMON_LABELS, *metric.labels)
    return [
        _head(metric),
        *(
            f"{metric.name}{_label_text(names, (*common, *key))} {float(value)}\n"
            for key, value in series.items()
        ),
    ]


def _histogram_lines(metric: Metric, common: Labels, data: HistogramData) -> list[str]:
    starts = _histogram_starts(metric.name, common)
    counts = list(accumulate(data.counts))
    figures = (*counts, data.sum, counts[-1])
    return [
        _head(metric),
        *(f"{start} {float(figure)}\n" for start, figure in zip(starts, figures, strict=True)),
    ]


@lru_cache(maxsize=256)
def _histogram_starts(name: str, common: Labels) -> tuple[str, ...]:
    """What a histogram's lines begin with: its buckets, its sum, its count."""
    names = (*COMMON_LABELS, "le")
    edges = (*map(str, METRICS[name].buckets), "+Inf")
    own = _label_text(COMMON_LABELS, common)
    return (
        *(f"{name}_bucket{_label_text(names, (*common, edge))}" for edge in edges),
        f"{name}_sum{own}",
        f"{name}_count{own}",
    )


def _head(metric: Metric) -> str:
    return f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind.value}\n"


def _label_text(names: Labels, values: Labels) -> str:
    pairs = zip(names, values, strict=True)
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


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

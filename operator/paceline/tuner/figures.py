"""Figures of engines behind a Prometheus, for a page: together, of each, and how it went.

Read as the tuner reads its signals (`decide/tuning/terms.py`, `queries.py`): one query each.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from paceline.tuner.fleet import IDENTITY
from paceline.tuner.prometheus import Prometheus
from paceline_crds import metrics
from paceline_operator.decide.tuning import queries
from paceline_operator.decide.tuning.queries import LABEL, Scope
from paceline_operator.decide.tuning.signals import Signal
from paceline_operator.decide.tuning.terms import (
    TERMS,
    Each,
    Fold,
    Folded,
    Over,
    Quantile,
    Term,
    Where,
)

POINTS = 60
_CACHED = Where(label="state", values=("cached",))


def _terms(gauges: Over) -> Mapping[str, Term]:
    """What is shown: counts of a span, percentiles over it, and gauges as they are asked for."""
    quantiles = {"ttft": metrics.TTFT, "itl": metrics.ITL, "step": metrics.STEP_DURATION}
    counts = (Signal.PREEMPTIONS, Signal.FINISHED, Signal.OUTPUT_TOKENS, Signal.PROMPT_TOKENS)

    def gauge(fold: Fold, series: str, *where: Where, over: Over = gauges) -> Folded:
        labels = tuple(item.label for item in where)
        return Folded(fold=fold, each=Each(over=over, series=series, where=where, by=labels))

    return {
        "running": gauge(Fold.SUM, metrics.RUNNING),
        "waiting": gauge(Fold.SUM, metrics.WAITING),
        "oldestWaiting": gauge(Fold.MOST, metrics.OLDEST_WAITING),
        "kvUsage": gauge(Fold.MEAN, metrics.KV_USAGE),
        "kvUsageMost": gauge(Fold.MOST, metrics.KV_USAGE, over=Over.P95),
        "kvCached": gauge(Fold.MEAN, metrics.BLOCK_SHARES, _CACHED),
        "kvBlocks": Folded(
            fold=Fold.SUM, each=Each(over=Over.LAST, series=metrics.BLOCKS, by=("state",))
        ),
        **{signal.value: TERMS[signal] for signal in counts},
        **{
            f"{name}P{share * 100:.0f}": Quantile(share=share, histogram=histogram)
            for name, histogram in quantiles.items()
            for share in (0.5, 0.99)
        },
    }


_NOW, _COURSE = _terms(Over.LAST), _terms(Over.MEAN)


def now(prometheus: Prometheus, scope: Scope, span_s: int, at: float) -> dict[str, float]:
    """All engines together at a time (seconds since the epoch); counts are of the span before."""
    found = prometheus.ask(queries.union(_NOW, scope, span_s), at)
    return {
        item.labels[LABEL]: item.value
        for item in found
        if item.labels.get(LABEL) in _NOW and isfinite(item.value)
    }


def of_each(
    prometheus: Prometheus, scope: Scope, span_s: int, at: float
) -> dict[tuple[str, ...], dict[str, float]]:
    """The same for each engine: (instance, engine) -> figures."""
    made: dict[tuple[str, ...], dict[str, float]] = {}
    for item in prometheus.ask(queries.union(_NOW, scope, span_s, by=IDENTITY), at):
        engine = tuple(item.labels.get(name, "") for name in IDENTITY)
        if item.labels.get(LABEL) in _NOW and isfinite(item.value):
            made.setdefault(engine, {})[item.labels[LABEL]] = item.value
    return made


def course(prometheus: Prometheus, scope: Scope, span_s: int, at: float) -> list[dict[str, Any]]:
    """How it went, up to a time: points of a span each, oldest first.

    Spans end at multiples of their length, so a point stays what it was from one look to the next.

    Returns:
        For each `at`, the end of its span, and the figures that there were.
    """
    last = int(at) // span_s * span_s
    first = last - span_s * (POINTS - 1)
    points: dict[int, dict[str, Any]] = {end: {"at": end} for end in range(first, last + 1, span_s)}
    query = queries.union(_COURSE, scope, span_s)
    for series in prometheus.ask_range(query, first, last, span_s):
        name = series.labels.get(LABEL, "")
        for moment, value in series.points:
            if name in _COURSE and isfinite(value) and moment in points:
                points[moment][name] = value
    return list(points.values())

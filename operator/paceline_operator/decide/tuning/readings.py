"""The signals (`terms`) from scrapes that the tuner keeps itself, where no Prometheus is.

Differences from what a Prometheus answers: a counter's increase begins with the last scrape before
the window, so that nothing between two windows is lost and nothing has to be extrapolated.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isnan

from paceline_operator.decide.tuning.signals import Sample, Window
from paceline_operator.decide.tuning.terms import (
    TERMS,
    Each,
    Fold,
    Folded,
    Over,
    Quantile,
    Ratio,
    Term,
    Total,
)

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted by name."""
Page = Mapping[str, Mapping[Labels, float]]
"""Name of the samples -> labels -> value, of one engine at one moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One engine's page.

    Attributes:
        engine: its name, as a pod's.
        at: seconds since the epoch.
    """

    engine: str
    at: float
    page: Page


def measured(scrapes: Iterable[Scrape], window: Window, engines: Sequence[str]) -> Sample:
    """All signals of a window.

    Args:
        scrapes: of any time, in order; those before the window say where counters stood.
        window: the window, open at its start and closed at its end, as Prometheus has it.
        engines: the ones that count.
    """
    kept: dict[str, list[Scrape]] = {name: [] for name in engines}
    for scrape in scrapes:
        if scrape.engine in kept and scrape.at <= window.end:
            kept[scrape.engine].append(scrape)
    spans = [_Span.of(found, window) for found in kept.values()]
    reader = _Reader([span for span in spans if span.inside])
    found = ((signal, reader.value(term)) for signal, term in TERMS.items())
    values = {signal: value for signal, value in found if value is not None}
    return Sample(window=window, pods=tuple(sorted(engines)), values=values)


def forget(scrapes: Iterable[Scrape], before: float) -> list[Scrape]:
    """Scrapes from a time on, and of each engine the last one before it."""
    last: dict[str, Scrape] = {}
    kept = []
    for scrape in scrapes:
        if scrape.at > before:
            kept.append(scrape)
        else:
            last[scrape.engine] = scrape
    return [*last.values(), *kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """One engine's scrapes of a window, and the one before it if there is one."""

    before: Scrape | None
    inside: tuple[Scrape, ...]

    @classmethod
    def of(cls, scrapes: Sequence[Scrape], window: Window) -> "_Span":
        earlier = [scrape for scrape in scrapes if scrape.at <= window.start]
        return cls(
            before=earlier[-1] if earlier else None,
            inside=tuple(scrape for scrape in scrapes if scrape.at > window.start),
        )

    def over(self, each: Each) -> dict[Labels, float]:
        """Values by the labels of `by`; where several series agree in those, the largest."""
        found: dict[Labels, float] = {}
        for labels in self._series(each):
            value = self._value(each, labels)
            if value is not None:
                own = dict(labels)
                key = tuple((name, own.get(name, "")) for name in each.by)
                found[key] = max(value, found.get(key, -inf))
        return found

    def _series(self, each: Each) -> list[Labels]:
        names = {
            label: None for scrape in self.inside for label in scrape.page.get(each.series, ())
        }
        if not each.where:
            return list(names)
        return [
            labels for labels in names if all(where.holds(dict(labels)) for where in each.where)
        ]

    def _value(self, each: Each, labels: Labels) -> float | None:
        inside = _points(self.inside, each.series, labels)
        before = _points([self.before] if self.before else [], each.series, labels)
        both = [*before, *inside]
        match each.over:
            case Over.INCREASE:
                # A counter that fell began anew at 0.
                return sum(b - a if b >= a else b for a, b in pairwise(both))
            case Over.DELTA:
                return both[-1] - both[0]
            case Over.CHANGES:
                return float(sum(a != b for a, b in pairwise(both)))
            case Over.COUNT:
                return float(len(inside))
            case Over.LAST:
                return inside[-1]
            case Over.MEAN:
                return sum(inside) / len(inside)
            case Over.LEAST:
                return min(inside)
            case Over.P95:
                return _share_of(inside, 0.95)


def _points(scrapes: Iterable[Scrape], series: str, labels: Labels) -> list[float]:
    found = (scrape.page.get(series, {}).get(labels) for scrape in scrapes)
    return [value for value in found if value is not None and not isnan(value)]


def _share_of(values: Sequence[float], share: float) -> float:
    """A quantile, linear between two values."""
    ranked = sorted(values)
    at = share * (len(ranked) - 1)
    low = int(at)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (at - low)


class _Reader:
    """Evaluates terms over engines. A series that is nowhere gives None, never a zero."""

    def __init__(self, spans: Sequence[_Span]) -> None:
        self._spans = spans

    def value(self, term: Term) -> float | None:
        match term:
            case Folded():
                return self._folded(term)
            case Quantile():
                return self._quantile(term)
            case Ratio():
                part, whole = self._folded(term.part), self._folded(term.whole)
                if part is None or not whole:
                    return None
                return 1 - part / whole if term.is_rest else part / whole
            case Total():
                one, other = self._folded(term.one), self._folded(term.other)
                return None if one is None or other is None else one + other

    def _folded(self, term: Folded) -> float | None:
        by_engine = [list(span.over(term.each).values()) for span in self._spans]
        if term.adds_up_each:
            values = [sum(found) for found in by_engine if found]
        else:
            values = [value for found in by_engine for value in found]
        if not values:
            return None
        match term.fold:
            case Fold.SUM:
                return sum(values)
            case Fold.MEAN:
                return sum(values) / len(values)
            case Fold.LEAST:
                return min(values)
            case Fold.MOST:
                return max(values)
            case Fold.COUNT:
                return float(len(values))

    def _quantile(self, term: Quantile) -> float | None:
        """Linear within a bucket; beyond the last bound it is that bound, as in PromQL."""
        counts: dict[float, float] = {}
        for span in self._spans:
            for labels, increase in span.over(term.buckets).items():
                bound = float(dict(labels)["le"])
                counts[bound] = counts.get(bound, 0.0) + increase
        total = counts.get(inf, 0.0)
        if not total:
            return None
        below, count_below = 0.0, 0.0
        for bound, count in sorted(counts.items()):
            if count >= term.share * total:
                if bound == inf:
                    return below
                return below + (bound - below) * (term.share * total - count_below) / (
                    count - count_below
                )
            below, count_below = bound, count
        return below

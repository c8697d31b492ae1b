"""What each signal is made of, declared once and read in two ways.

`queries` writes a term as PromQL for a fleet that a Prometheus scrapes; `readings` evaluates it
over scrapes that somebody keeps themselves, as `paceline run` and the simulator do. So both give
the same signals in the same units.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from paceline_crds import metrics
from paceline_operator.decide.tuning.signals import Signal

PROCESS_START = "process_start_time_seconds"


class Over(StrEnum):
    """What becomes of one series over a window; PromQL's own functions."""

    INCREASE = "increase"
    DELTA = "delta"
    CHANGES = "changes"
    COUNT = "count_over_time"
    LAST = "last_over_time"
    MEAN = "avg_over_time"
    LEAST = "min_over_time"
    P95 = "quantile_over_time"


class Fold(StrEnum):
    """How the engines' values become one; PromQL's own aggregations."""

    SUM = "sum"
    MEAN = "avg"
    LEAST = "min"
    MOST = "max"
    COUNT = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A condition on a label: one of some values, or with `is_not` none of them."""

    label: str
    values: tuple[str, ...]
    is_not: bool = False

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a series' labels meet it."""
        return (labels.get(self.label, "") in self.values) is not self.is_not


@dataclass(frozen=True, slots=True, kw_only=True)
class Each:
    """One value for each engine, and for each value of the further labels `by`.

    Attributes:
        series: name of the samples; a histogram's with its ending.
    """

    over: Over
    series: str
    where: tuple[Where, ...] = ()
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """All engines together.

    Attributes:
        adds_up_each: values of one engine that differ in `by` are added up first.
    """

    fold: Fold
    each: Each
    adds_up_each: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """Of a histogram's observations in the window, all engines together."""

    share: float
    histogram: str

    @property
    def buckets(self) -> Each:
        """Its buckets' increase."""
        return Each(over=Over.INCREASE, series=f"{self.histogram}_bucket", by=("le",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One term over another; with `is_rest` what is left to one."""

    part: Folded
    whole: Folded
    is_rest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """Two terms added up."""

    one: Folded
    other: Folded


Term = Folded | Quantile | Ratio | Total


def _each(over: Over, series: str, fold: Fold) -> Folded:
    return Folded(fold=fold, each=Each(over=over, series=series))


def _total(series: str, *where: Where, by: tuple[str, ...] = ()) -> Folded:
    labels = by or tuple(item.label for item in where)
    each = Each(over=Over.INCREASE, series=series, where=where, by=labels)
    return Folded(fold=Fold.SUM, each=each)


def _mean(histogram: str) -> Ratio:
    return Ratio(part=_total(f"{histogram}_sum"), whole=_total(f"{histogram}_count"))


def _is(label: str, *values: str) -> Where:
    return Where(label=label, values=values)


def _judged(signal: str, bound: str) -> Folded:
    return _total(metrics.SLO_OBSERVATIONS, _is("signal", signal), _is("within", bound))


_NOT_ON_DEVICE = Where(label="part", values=("device",), is_not=True)
_BUDGET = metrics.STEP_BUDGET_USED

TERMS: Mapping[Signal, Term] = {
    Signal.SCRAPES: _each(Over.COUNT, metrics.RUNNING, Fold.LEAST),
    Signal.PODS: _each(Over.LAST, metrics.RUNNING, Fold.COUNT),
    Signal.RESTARTS: _each(Over.CHANGES, PROCESS_START, Fold.SUM),
    Signal.SLO_CHANGES: _each(Over.CHANGES, metrics.SLO_REVISION, Fold.SUM),
    Signal.STARTUP: Folded(
        fold=Fold.MOST,
        each=Each(over=Over.LAST, series=metrics.STARTUP_SECONDS, by=("phase",)),
        adds_up_each=True,
    ),
    Signal.FINISHED: _total(metrics.SUCCESS, by=("finished_reason",)),
    Signal.ERRORS: _total(metrics.SUCCESS, _is("finished_reason", "error", "timeout")),
    Signal.QUEUE_GROWTH: Total(
        one=_each(Over.DELTA, metrics.RUNNING, Fold.SUM),
        other=_each(Over.DELTA, metrics.WAITING, Fold.SUM),
    ),
    Signal.PROMPT_TOKENS: _total(metrics.PROMPT_TOKENS),
    Signal.OUTPUT_TOKENS: _total(metrics.GENERATION_TOKENS),
    Signal.PROMPT_LENGTH: _mean(metrics.REQUEST_PROMPT_TOKENS),
    Signal.OUTPUT_LENGTH: _mean(metrics.REQUEST_GENERATION_TOKENS),
    Signal.LONG_PROMPT: Quantile(share=0.95, histogram=metrics.REQUEST_PROMPT_TOKENS),
    Signal.PREEMPTIONS: _total(metrics.PREEMPTIONS),
    Signal.GOOD: _total(metrics.SLO_REQUESTS, _is("result", "good")),
    Signal.JUDGED: _total(metrics.SLO_REQUESTS, by=("result",)),
    Signal.TTFT_WITHIN: _judged("ttft", "1"),
    Signal.TTFT_JUDGED: _judged("ttft", "inf"),
    Signal.ITL_WITHIN: _judged("itl", "1"),
    Signal.ITL_JUDGED: _judged("itl", "inf"),
    Signal.E2E_WITHIN: _judged("e2e", "1"),
    Signal.E2E_JUDGED: _judged("e2e", "inf"),
    Signal.RUNNING: _each(Over.MEAN, metrics.RUNNING, Fold.MEAN),
    Signal.WAITING: _each(Over.MEAN, metrics.WAITING, Fold.MEAN),
    Signal.LEAST_WAITING: _each(Over.LEAST, metrics.WAITING, Fold.SUM),
    Signal.KV_USAGE: _each(Over.MEAN, metrics.KV_USAGE, Fold.MEAN),
    Signal.KV_USAGE_P95: _each(Over.P95, metrics.KV_USAGE, Fold.MOST),
    Signal.ITL_P50: Quantile(share=0.5, histogram=metrics.ITL),
    Signal.ITL_P99: Quantile(share=0.99, histogram=metrics.ITL),
    Signal.TTFT: _mean(metrics.TTFT),
    Signal.TTFT_P50: Quantile(share=0.5, histogram=metrics.TTFT),
    Signal.QUEUE_TIME: _mean(metrics.QUEUE_TIME),
    Signal.PREFILL_TIME: _mean(metrics.PREFILL_TIME),
    Signal.STEP_FILL: _mean(_BUDGET),
    Signal.LARGE_STEPS: Ratio(
        part=_total(f"{_BUDGET}_bucket", _is("le", "0.4")),
        whole=_total(f"{_BUDGET}_count"),
        is_rest=True,
    ),
    Signal.HOST_TIME: _total(metrics.STEP_SECONDS, _NOT_ON_DEVICE),
    Signal.DEVICE_TIME: _total(metrics.STEP_SECONDS, _is("part", "device")),
    Signal.PREFIX_QUERIES: _total(metrics.PREFIX_QUERIES),
    Signal.PREFIX_HITS: _total(metrics.PREFIX_HITS),
    Signal.PROMPT_HEADS: _total(metrics.PROMPT_HEADS),
    Signal.SHARED_HEADS: _total(metrics.PROMPT_HEADS_SHARED),
    Signal.DRAFTED: _total(metrics.SPEC_DRAFT_TOKENS),
    Signal.ACCEPTED: _total(metrics.SPEC_ACCEPTED),
}
"""Every signal."""


def parts(term: Term) -> tuple[Each, ...]:
    """The series that a term reads."""
    match term:
        case Folded():
            return (term.each,)
        case Quantile():
            return (term.buckets,)
        case Ratio():
            return (term.part.each, term.whole.each)
        case Total():
            return (term.one.each, term.other.each)


SERIES = frozenset(each.series for term in TERMS.values() for each in parts(term))
"""Names of all samples that are read; the others of a page need not be kept."""

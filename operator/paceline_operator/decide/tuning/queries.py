"""The signals as one PromQL query, evaluated at an explicit time: the end of a window.

Every selector names the namespace and the counted pods; nothing goes by model name. Where two
Prometheus jobs scrape a pod each series is there twice, so duplicates go first (`max by` what
identifies an engine), then engines are added up. The whole sample is one query: the union of all
signals, each with its name in the label `signal`, so it is of one moment or it is missing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from paceline_crds import metrics
from paceline_operator.decide.tuning.signals import Signal

LABEL = "signal"
ENGINE = ("namespace", "pod", "engine")
"""Labels that identify an engine in a cluster."""
_ERRORS = ("error", "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which series are meant.

    Attributes:
        matchers: label matchers of every selector, without braces.
        identity: labels that identify an engine.
    """

    matchers: str
    identity: tuple[str, ...] = ENGINE


def pods(namespace: str, names: Iterable[str]) -> Scope:
    """Exactly these pods of a namespace."""
    listed = "|".join(name.replace(".", r"\\.") for name in sorted(names))
    return Scope(matchers=f'namespace="{namespace}",pod=~"{listed}"')


def sample(scope: Scope, window_s: int) -> str:
    """The query of a whole sample; one series for each signal that there is.

    Args:
        scope: the series.
        window_s: length of the window, whose end is the time of evaluation.
    """
    asked = _Asked(scope, f"{window_s}s")
    return " or ".join(
        f'label_replace({text}, "{LABEL}", "{name}", "", "")' for name, text in asked.all().items()
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """Builds the texts for one scope and one window."""

    scope: Scope
    window: str

    def all(self) -> dict[Signal, str]:
        """The query of each signal."""
        return {
            **self._facts(),
            **self._requests(),
            **self._targets(),
            **self._gauges(),
            **self._times(),
            **self._steps(),
            **self._caches(),
        }

    def _series(self, name: str, more: str = "") -> str:
        return f"{name}{{{self.scope.matchers}{',' + more if more else ''}}}[{self.window}]"

    def _each(self, function: str, name: str, more: str = "", by: Iterable[str] = ()) -> str:
        """One value for each engine (and further labels), duplicates gone."""
        labels = ", ".join((*self.scope.identity, *by))
        return f"max by ({labels}) ({function}({self._series(name, more)}))"

    def _total(self, name: str, more: str = "", by: Iterable[str] = ()) -> str:
        return f"sum({self._each('increase', name, more, by)})"

    def _mean(self, histogram: str) -> str:
        return f"{self._total(f'{histogram}_sum')} / {self._total(f'{histogram}_count')}"

    def _quantile(self, share: float, histogram: str) -> str:
        buckets = self._each("increase", f"{histogram}_bucket", by=("le",))
        return f"histogram_quantile({share}, sum by (le) ({buckets}))"

    def _facts(self) -> dict[Signal, str]:
        running = metrics.RUNNING
        return {
            Signal.SCRAPES: f"min({self._each('count_over_time', running)})",
            Signal.PODS: f"count({self._each('last_over_time', running)})",
            Signal.RESTARTS: f"sum({self._each('changes', 'process_start_time_seconds')})",
            Signal.SLO_CHANGES: f"sum({self._each('changes', metrics.SLO_REVISION)})",
            Signal.STARTUP: f"max(sum by ({', '.join(self.scope.identity)}) "
            f"({self._each('last_over_time', metrics.STARTUP_SECONDS, by=('phase',))}))",
        }

    def _requests(self) -> dict[Signal, str]:
        ended = "|".join(_ERRORS)
        grown = [self._each("delta", name) for name in (metrics.RUNNING, metrics.WAITING)]
        return {
            Signal.FINISHED: self._total(metrics.SUCCESS, by=("finished_reason",)),
            Signal.ERRORS: self._total(
                metrics.SUCCESS, f'finished_reason=~"{ended}"', by=("finished_reason",)
            ),
            Signal.QUEUE_GROWTH: f"sum({grown[0]}) + sum({grown[1]})",
            Signal.PROMPT_TOKENS: self._total(metrics.PROMPT_TOKENS),
            Signal.OUTPUT_TOKENS: self._total(metrics.GENERATION_TOKENS),
            Signal.PROMPT_LENGTH: self._mean(metrics.REQUEST_PROMPT_TOKENS),
            Signal.OUTPUT_LENGTH: self._mean(metrics.REQUEST_GENERATION_TOKENS),
            Signal.LONG_PROMPT: self._quantile(0.95, metrics.REQUEST_PROMPT_TOKENS),
            Signal.PREEMPTIONS: self._total(metrics.PREEMPTIONS),
        }

    def _targets(self) -> dict[Signal, str]:
        def within(signal: str, bound: str) -> str:
            more = f'signal="{signal}",within="{bound}"'
            return self._total(metrics.SLO_OBSERVATIONS, more, by=("signal", "within"))

        return {
            Signal.GOOD: self._total(metrics.SLO_REQUESTS, 'result="good"', by=("result",)),
            Signal.JUDGED: self._total(metrics.SLO_REQUESTS, by=("result",)),
            Signal.TTFT_WITHIN: within("ttft", "1"),
            Signal.TTFT_JUDGED: within("ttft", "inf"),
            Signal.ITL_WITHIN: within("itl", "1"),
            Signal.ITL_JUDGED: within("itl", "inf"),
            Signal.E2E_WITHIN: within("e2e", "1"),
            Signal.E2E_JUDGED: within("e2e", "inf"),
        }

    def _gauges(self) -> dict[Signal, str]:
        percentile = f"quantile_over_time(0.95, {self._series(metrics.KV_USAGE)})"
        labels = ", ".join(self.scope.identity)
        return {
            Signal.RUNNING: f"avg({self._each('avg_over_time', metrics.RUNNING)})",
            Signal.WAITING: f"avg({self._each('avg_over_time', metrics.WAITING)})",
            Signal.LEAST_WAITING: f"sum({self._each('min_over_time', metrics.WAITING)})",
            Signal.KV_USAGE: f"avg({self._each('avg_over_time', metrics.KV_USAGE)})",
            Signal.KV_USAGE_P95: f"max(max by ({labels}) ({percentile}))",
        }

    def _times(self) -> dict[Signal, str]:
        return {
            Signal.ITL_P50: self._quantile(0.5, metrics.ITL),
            Signal.ITL_P99: self._quantile(0.99, metrics.ITL),
            Signal.TTFT: self._mean(metrics.TTFT),
            Signal.TTFT_P50: self._quantile(0.5, metrics.TTFT),
            Signal.QUEUE_TIME: self._mean(metrics.QUEUE_TIME),
            Signal.PREFILL_TIME: self._mean(metrics.PREFILL_TIME),
        }

    def _steps(self) -> dict[Signal, str]:
        used = metrics.STEP_BUDGET_USED
        small = self._total(f"{used}_bucket", 'le="0.4"', by=("le",))
        all_of_them = self._total(f"{used}_count")
        return {
            Signal.STEP_FILL: self._mean(used),
            Signal.LARGE_STEPS: f"1 - {small} / {all_of_them}",
            Signal.HOST_TIME: self._total(metrics.STEP_SECONDS, 'part!="device"', by=("part",)),
            Signal.DEVICE_TIME: self._total(metrics.STEP_SECONDS, 'part="device"', by=("part",)),
        }

    def _caches(self) -> dict[Signal, str]:
        return {
            Signal.PREFIX_QUERIES: self._total(metrics.PREFIX_QUERIES),
            Signal.PREFIX_HITS: self._total(metrics.PREFIX_HITS),
            Signal.PROMPT_HEADS: self._total(metrics.PROMPT_HEADS),
            Signal.SHARED_HEADS: self._total(metrics.PROMPT_HEADS_SHARED),
            Signal.DRAFTED: self._total(metrics.SPEC_DRAFT_TOKENS),
            Signal.ACCEPTED: self._total(metrics.SPEC_ACCEPTED),
        }

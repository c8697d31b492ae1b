"""One side of a comparison: consecutive windows under the same settings, added up.

Sums, not means: an arm grows by a window in place, and status holds it in a few numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import sqrt

from paceline_operator.decide.tuning.quantum import quantised
from paceline_operator.decide.tuning.signals import Sample, Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What consecutive windows add up to; counts of all counted pods together.

    Attributes:
        start, end: of its windows; 0 while it has none.
        windows: how many.
        pod_seconds: time times counted pods.
        arrived: finished requests, and how many more are in the engines at the end.
        present: requests in the engines, times seconds.
        primary, primary_squares: goodput of each window, and its square, for the noise.
        usage: KV usage's 95th percentile of each window, added up; running: mean requests that
            run in a pod, likewise.
        prompts, outputs: tokens of finished requests.
        output_tokens: given to clients, of requests that still run too.
        ttft, prefill, itl: mean seconds (of the gap between tokens the median), weighted by
            finished requests.
        waiting: least waiting requests of each window, added up.
    """

    start: int = 0
    end: int = 0
    windows: int = 0
    pod_seconds: float = 0.0
    finished: float = 0.0
    arrived: float = 0.0
    present: float = 0.0
    good: float = 0.0
    errors: float = 0.0
    judged: float = 0.0
    ttft_within: float = 0.0
    ttft_judged: float = 0.0
    itl_within: float = 0.0
    itl_judged: float = 0.0
    e2e_within: float = 0.0
    e2e_judged: float = 0.0
    prompts: float = 0.0
    outputs: float = 0.0
    output_tokens: float = 0.0
    preemptions: float = 0.0
    ttft: float = 0.0
    prefill: float = 0.0
    itl: float = 0.0
    usage: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    primary: float = 0.0
    primary_squares: float = 0.0

    @property
    def requests(self) -> float:
        """Finished requests: what an arm needs enough of."""
        return self.finished

    def attainment(self, name: str) -> float | None:
        """Share of requests within the target `ttft`, `itl` or `e2e`; `all` for every one."""
        part, whole = (
            (self.good, self.judged)
            if name == "all"
            else (getattr(self, f"{name}_within"), getattr(self, f"{name}_judged"))
        )
        return part / whole if whole > 0 else None

    def goodput(self, has_targets: bool) -> float:
        """Good requests a second and pod; without targets output tokens."""
        total = self.good if has_targets else self.output_tokens
        return total / self.pod_seconds if self.pod_seconds else 0.0

    def noise(self, has_targets: bool) -> float:
        """Standard error of the goodput, relative to it: what repeats of the same arm would show.

        The larger of what its windows scatter and what chance alone gives to so many requests.
        """
        mean = self.primary / self.windows if self.windows else 0.0
        if mean <= 0 or not self.finished:
            return 1.0  # of nothing, one request more or less is all
        chance = 1 / sqrt(self.finished)
        if has_targets:
            share = self.attainment("all") or 0.0
            chance = sqrt((1 - share) / max(1.0, self.good))
        return max(chance, self.scatter)

    @property
    def scatter(self) -> float:
        """Standard error of the goodput as its windows differ, relative to it; 0 of nothing."""
        mean = self.primary / self.windows if self.windows else 0.0
        if mean <= 0 or self.windows < 2:
            return 0.0
        variance = self.primary_squares / self.windows - mean * mean
        return sqrt(max(0.0, variance) / (self.windows - 1)) / mean

    def per_request(self, total: float) -> float:
        """A sum over requests, for each."""
        return total / self.finished if self.finished else 0.0

    def figures(self, has_targets: bool) -> dict[str, float]:
        """What people are shown of it."""
        shown: dict[str, float | None] = {
            "goodput": self.goodput(has_targets),
            "requestsPerSecond": self.arrived / self.pod_seconds if self.pod_seconds else 0.0,
            "attainment": self.attainment("all"),
            **{f"{name}Attainment": self.attainment(name) for name in ("ttft", "itl", "e2e")},
            "outputTokensPerSecond": self.goodput(has_targets=False),
            "ttftSeconds": self.per_request(self.ttft),
            "preemptionsPerRequest": self.per_request(self.preemptions),
            "kvUsageP95": self.usage / self.windows if self.windows else 0.0,
            "requests": self.finished,
        }
        return {name: quantised(value) for name, value in shown.items() if value is not None}


MAX_GAP_WINDOWS = 5
"""Windows that cross a restart or a change of replicas are left out; the arm goes on after."""

SUMS = tuple(item.name for item in fields(Arm) if item.name not in {"start", "end", "windows"})
"""Names of what is added up, snake_case."""

_COUNTS: Mapping[str, Signal] = {
    "finished": Signal.FINISHED,
    "good": Signal.GOOD,
    "judged": Signal.JUDGED,
    "errors": Signal.ERRORS,
    "ttft_within": Signal.TTFT_WITHIN,
    "ttft_judged": Signal.TTFT_JUDGED,
    "itl_within": Signal.ITL_WITHIN,
    "itl_judged": Signal.ITL_JUDGED,
    "e2e_within": Signal.E2E_WITHIN,
    "e2e_judged": Signal.E2E_JUDGED,
    "output_tokens": Signal.OUTPUT_TOKENS,
    "preemptions": Signal.PREEMPTIONS,
    "usage": Signal.KV_USAGE_P95,
    "running": Signal.RUNNING,
    "waiting": Signal.LEAST_WAITING,
}
NEEDED = (Signal.FINISHED, Signal.OUTPUT_TOKENS, Signal.RUNNING, Signal.WAITING)
"""Without these a window cannot be part of an arm."""


def extended(arm: Arm, sample: Sample, has_targets: bool) -> Arm:
    """The arm with one more window; after too many that were left out it begins anew."""
    if arm.windows and sample.window.start - arm.end > MAX_GAP_WINDOWS * sample.window.length_s:
        arm = Arm()
    one = _of_sample(sample, has_targets)
    sums = {name: quantised(getattr(arm, name) + getattr(one, name)) for name in SUMS}
    return replace(
        arm,
        start=arm.start if arm.windows else one.start,
        end=one.end,
        windows=arm.windows + 1,
        **sums,
    )


def _of_sample(sample: Sample, has_targets: bool) -> Arm:
    def value(signal: Signal) -> float:
        return sample.get(signal) or 0.0

    seconds, num_pods = sample.window.length_s, len(sample.pods)
    finished = value(Signal.FINISHED)
    counts = {name: value(signal) for name, signal in _COUNTS.items()}
    made = Arm(
        start=sample.window.start,
        end=sample.window.end,
        windows=1,
        pod_seconds=seconds * num_pods,
        arrived=max(0.0, finished + value(Signal.QUEUE_GROWTH)),
        present=(value(Signal.RUNNING) + value(Signal.WAITING)) * num_pods * seconds,
        prompts=_length(sample, Signal.PROMPT_LENGTH, Signal.PROMPT_TOKENS) * finished,
        outputs=_length(sample, Signal.OUTPUT_LENGTH, Signal.OUTPUT_TOKENS) * finished,
        ttft=value(Signal.TTFT) * finished,
        prefill=value(Signal.PREFILL_TIME) * finished,
        itl=value(Signal.ITL_P50) * finished,
        **counts,
    )
    goodput = made.goodput(has_targets)
    return replace(made, primary=goodput, primary_squares=goodput * goodput)


def _length(sample: Sample, mean: Signal, total: Signal) -> float:
    """Mean tokens of a finished request; without a histogram the window's tokens over it."""
    found = sample.get(mean)
    return found if found is not None else sample.ratio(total, Signal.FINISHED) or 0.0


def is_usable(sample: Sample) -> bool:
    """Whether a window can be part of an arm."""
    return sample.problem is None and sample.known(*NEEDED) is not None

"""What the tuner measures: one sample for each window, each signal a number or why there is none.

A signal that is absent is never a zero: `Sample.get` gives None, and `Sample.problem` says why the
whole sample cannot be used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

MIN_SCRAPES = 4
"""A window must hold so many: fewer say too little about what happened between them."""
SCRAPES_BEHIND = 2
"""A window is read once so many scrapes have come after its end, so that nothing is missing."""


class Signal(StrEnum):
    """Names of the signals. A count is of the whole window and of all counted pods together."""

    SCRAPES = "scrapes"
    """Least scrapes of a pod in the window."""
    PODS = "pods"
    """Pods with series."""
    RESTARTS = "restarts"
    """Changes of a process's start time."""
    SLO_CHANGES = "sloChanges"
    """Changes of the revision of the targets."""
    FINISHED = "finished"
    """Requests that ended, however."""
    ERRORS = "errors"
    """Requests that ended with an error or too late."""
    QUEUE_GROWTH = "queueGrowth"
    """Requests in the engines at the end less those at the beginning."""
    GOOD = "good"
    """Requests that met every target that is set."""
    JUDGED = "judged"
    """Requests that were judged by targets."""
    TTFT_WITHIN = "ttftWithin"
    """Requests within the target of time to first token."""
    TTFT_JUDGED = "ttftJudged"
    """Requests judged by it."""
    ITL_WITHIN = "itlWithin"
    """Requests within the target of the gap between tokens."""
    ITL_JUDGED = "itlJudged"
    """Requests judged by it."""
    E2E_WITHIN = "e2eWithin"
    """Requests within the target of their whole duration."""
    E2E_JUDGED = "e2eJudged"
    """Requests judged by it."""
    PROMPT_TOKENS = "promptTokens"
    """Prompt tokens of requests whose prompt was done."""
    OUTPUT_TOKENS = "outputTokens"
    """Output tokens that clients got."""
    PROMPT_LENGTH = "promptLength"
    """Mean prompt tokens of a finished request."""
    OUTPUT_LENGTH = "outputLength"
    """Mean output tokens of a finished request."""
    LONG_PROMPT = "longPrompt"
    """95th percentile of prompt tokens of a finished request."""
    RUNNING = "running"
    """Mean of requests that run in a pod."""
    WAITING = "waiting"
    """Mean of requests that wait in a pod."""
    LEAST_WAITING = "leastWaiting"
    """Fewest requests that waited, all pods together."""
    KV_USAGE = "kvUsage"
    """Mean share of the KV blocks in use."""
    KV_USAGE_P95 = "kvUsageP95"
    """95th percentile of that share over the window, of the fullest pod."""
    PREEMPTIONS = "preemptions"
    """Preemptions."""
    ITL_P50 = "itlP50"
    """Median gap between tokens, seconds."""
    ITL_P99 = "itlP99"
    """99th percentile of the gap between tokens, seconds."""
    TTFT = "ttft"
    """Mean time to first token, seconds."""
    TTFT_P50 = "ttftP50"
    """Median time to first token, seconds."""
    QUEUE_TIME = "queueTime"
    """Mean time from arrival to admission, seconds."""
    PREFILL_TIME = "prefillTime"
    """Mean time from admission to the first token, seconds."""
    STEP_FILL = "stepFill"
    """Mean share of the token budget that a step used."""
    LARGE_STEPS = "largeSteps"
    """Share of steps that used more than 0.4 of the token budget: half of it is the cap of one
    long prompt while others run."""
    HOST_TIME = "hostTime"
    """Seconds of steps outside of the device, all pods together."""
    DEVICE_TIME = "deviceTime"
    """Seconds of steps on the device, all pods together."""
    PREFIX_QUERIES = "prefixQueries"
    """Prompt tokens looked up in the prefix cache."""
    PREFIX_HITS = "prefixHits"
    """Prompt tokens found there."""
    PROMPT_HEADS = "promptHeads"
    """Requests whose prompt is long enough to have a head."""
    SHARED_HEADS = "sharedHeads"
    """Requests whose head was seen before another continuation."""
    DRAFTED = "drafted"
    """Draft tokens."""
    ACCEPTED = "accepted"
    """Draft tokens that were accepted."""
    STARTUP = "startup"
    """Seconds that the slowest start took."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Window:
    """A span of time, half-open.

    Attributes:
        start, end: whole seconds since the epoch.
    """

    start: int
    end: int

    @property
    def length_s(self) -> int:
        """Its length."""
        return self.end - self.start


class Problem(StrEnum):
    """Why a window cannot be used. Reasons of MetricsAvailable are among them."""

    NO_PODS = "NoWarmPods"
    NO_SERIES = "NoSeries"
    PODS_MISSING = "PodsMissing"
    SCRAPE_TOO_SLOW = "ScrapeTooSlow"
    CROSSES_RESTART = "CrossesRestart"
    CROSSES_SLO_CHANGE = "CrossesSloChange"


SPOILS_METRICS = frozenset({Problem.NO_SERIES, Problem.PODS_MISSING, Problem.SCRAPE_TOO_SLOW})
"""Problems of the measurement; the others say that what was measured changed meanwhile."""
SAYS_NOTHING = SPOILS_METRICS | {Problem.NO_PODS}
"""Problems with which a window is no measurement of anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was measured in one window.

    Attributes:
        pods: names of the counted pods: ready, of the wanted template, older than their warm-up.
        values: signals that have a number.
    """

    window: Window
    pods: tuple[str, ...]
    values: Mapping[Signal, float] = field(default_factory=dict)

    def get(self, signal: Signal) -> float | None:
        """A signal, None if it is missing or not a number."""
        value = self.values.get(signal)
        return value if value is not None and isfinite(value) else None

    def known(self, *signals: Signal) -> tuple[float, ...] | None:
        """Several signals, None unless all are there."""
        found = [self.get(signal) for signal in signals]
        return None if None in found else tuple(value for value in found if value is not None)

    def ratio(self, part: Signal, whole: Signal) -> float | None:
        """One signal over another, None without the latter."""
        both = self.known(part, whole)
        return both[0] / both[1] if both and both[1] > 0 else None

    @property
    def problem(self) -> Problem | None:
        """Why this window cannot be used, None if it can."""
        scrapes, pods = self.get(Signal.SCRAPES), self.get(Signal.PODS)
        if not self.pods:
            return Problem.NO_PODS
        if scrapes is None or pods is None:
            return Problem.NO_SERIES
        if pods < len(self.pods):
            return Problem.PODS_MISSING
        if scrapes < MIN_SCRAPES:
            return Problem.SCRAPE_TOO_SLOW
        if self.get(Signal.RESTARTS):
            return Problem.CROSSES_RESTART
        if self.get(Signal.SLO_CHANGES):
            return Problem.CROSSES_SLO_CHANGE
        return None

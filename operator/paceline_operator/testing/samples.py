"""Samples for tests: a healthy window, and what each symptom looks like."""

from collections.abc import Mapping

from paceline_operator.decide.tuning.policy import Policy, Target
from paceline_operator.decide.tuning.signals import Sample, Signal, Window
from paceline_operator.decide.tuning.symptom import Symptom

POLICY = Policy(targets={"ttft": Target(limit_s=2.0), "itl": Target(limit_s=0.1)})
CAPS: Mapping[str, float] = {"maxNumSeqs": 100.0, "maxNumBatchedTokens": 2048.0}
START = 1_800_000_000

HEALTHY: Mapping[Signal, float] = {
    Signal.SCRAPES: 8,
    Signal.PODS: 1,
    Signal.RESTARTS: 0,
    Signal.SLO_CHANGES: 0,
    Signal.FINISHED: 600,
    Signal.ERRORS: 0,
    Signal.QUEUE_GROWTH: 0,
    Signal.GOOD: 600,
    Signal.JUDGED: 600,
    Signal.TTFT_WITHIN: 600,
    Signal.TTFT_JUDGED: 600,
    Signal.ITL_WITHIN: 600,
    Signal.ITL_JUDGED: 600,
    Signal.E2E_WITHIN: 0,
    Signal.E2E_JUDGED: 0,
    Signal.PROMPT_TOKENS: 300_000,
    Signal.OUTPUT_TOKENS: 60_000,
    Signal.PROMPT_LENGTH: 500,
    Signal.OUTPUT_LENGTH: 100,
    Signal.LONG_PROMPT: 1000,
    Signal.RUNNING: 30,
    Signal.WAITING: 0,
    Signal.LEAST_WAITING: 0,
    Signal.KV_USAGE: 0.5,
    Signal.KV_USAGE_P95: 0.6,
    Signal.PREEMPTIONS: 0,
    Signal.ITL_P50: 0.03,
    Signal.ITL_P99: 0.06,
    Signal.TTFT: 0.2,
    Signal.TTFT_P50: 0.15,
    Signal.QUEUE_TIME: 0.01,
    Signal.PREFILL_TIME: 0.14,
    Signal.STEP_FILL: 0.1,
    Signal.LARGE_STEPS: 0.01,
    Signal.HOST_TIME: 10,
    Signal.DEVICE_TIME: 60,
    Signal.PREFIX_QUERIES: 300_000,
    Signal.PREFIX_HITS: 100_000,
    Signal.PROMPT_HEADS: 600,
    Signal.SHARED_HEADS: 60,
    Signal.DRAFTED: 0,
    Signal.ACCEPTED: 0,
    Signal.STARTUP: 60,
}

SHOWS: Mapping[Symptom, Mapping[Signal, float]] = {
    Symptom.SLOW_START: {Signal.STARTUP: 700},
    Symptom.KV_PRESSURE: {Signal.KV_USAGE_P95: 0.99, Signal.PREEMPTIONS: 60},
    Symptom.SPECULATION_COSTS: {
        Signal.RUNNING: 75,
        Signal.DRAFTED: 10_000,
        Signal.ACCEPTED: 6_000,
    },
    Symptom.SPIKY_STREAMS: {
        Signal.ITL_P99: 0.3,
        Signal.LARGE_STEPS: 0.1,
        Signal.ITL_WITHIN: 500,
    },
    Symptom.SLOW_STREAMS: {
        Signal.RUNNING: 95,
        Signal.ITL_P50: 0.15,
        Signal.ITL_P99: 0.2,
        Signal.ITL_WITHIN: 100,
    },
    Symptom.QUEUE_WAIT: {
        Signal.WAITING: 20,
        Signal.LEAST_WAITING: 5,
        Signal.RUNNING: 60,
        Signal.QUEUE_TIME: 5,
        Signal.TTFT_P50: 5,
        Signal.TTFT_WITHIN: 100,
    },
    Symptom.SLOW_PREFILL: {
        Signal.PREFILL_TIME: 1.9,
        Signal.LARGE_STEPS: 0.5,
        Signal.TTFT_WITHIN: 400,
    },
    Symptom.PREFIX_MISSES: {Signal.SHARED_HEADS: 400, Signal.PREFIX_HITS: 10_000},
    Symptom.CAP_TOO_LOW: {
        Signal.KV_USAGE_P95: 0.2,
        Signal.RUNNING: 99,
        Signal.WAITING: 10,
    },
    Symptom.HOST_BOUND: {Signal.HOST_TIME: 80, Signal.DEVICE_TIME: 30},
    Symptom.DEVICE_BOUND: {
        Signal.DEVICE_TIME: 115,
        Signal.HOST_TIME: 3,
        Signal.RUNNING: 99,
        Signal.WAITING: 10,
    },
}
"""Signals that differ from a healthy window."""

AT_THE_EDGE: Mapping[Symptom, Mapping[Signal, float]] = {
    Symptom.SLOW_START: {Signal.STARTUP: 570},
    Symptom.KV_PRESSURE: {Signal.KV_USAGE_P95: 0.93, Signal.PREEMPTIONS: 3},
    Symptom.SPECULATION_COSTS: {Signal.RUNNING: 56, Signal.DRAFTED: 10_000},
    Symptom.SPIKY_STREAMS: {
        Signal.ITL_P99: 0.1,
        Signal.LARGE_STEPS: 0.015,
        Signal.ITL_WITHIN: 500,
    },
    Symptom.SLOW_STREAMS: {
        Signal.RUNNING: 75,
        Signal.ITL_P50: 0.095,
        Signal.ITL_P99: 0.3,
        Signal.ITL_WITHIN: 500,
    },
    Symptom.QUEUE_WAIT: {
        Signal.WAITING: 20,
        Signal.LEAST_WAITING: 5,
        Signal.QUEUE_TIME: 0.3,
        Signal.TTFT_WITHIN: 500,
    },
    Symptom.SLOW_PREFILL: {
        Signal.PREFILL_TIME: 1.2,
        Signal.LARGE_STEPS: 0.15,
        Signal.TTFT_WITHIN: 500,
    },
    Symptom.PREFIX_MISSES: {Signal.SHARED_HEADS: 150, Signal.PREFIX_HITS: 80_000},
    Symptom.CAP_TOO_LOW: {
        Signal.KV_USAGE_P95: 0.35,
        Signal.RUNNING: 90,
        Signal.WAITING: 0.3,
    },
    Symptom.HOST_BOUND: {Signal.HOST_TIME: 50, Signal.DEVICE_TIME: 40},
    Symptom.DEVICE_BOUND: {
        Signal.DEVICE_TIME: 105,
        Signal.HOST_TIME: 3,
        Signal.RUNNING: 75,
        Signal.WAITING: 0.3,
    },
}
"""Between the two thresholds: not enough to begin, enough to stay."""


def sample(
    changed: Mapping[Signal, float] | None = None,
    *,
    index: int = 0,
    length_s: int = 120,
    without: frozenset[Signal] = frozenset(),
    pods: tuple[str, ...] = ("chat-0",),
) -> Sample:
    """A healthy window with other values.

    Args:
        changed: signals that differ.
        index: number of the window on the grid.
        length_s: of a window.
        without: signals that are missing.
        pods: counted ones.
    """
    values = {**HEALTHY, Signal.PODS: float(len(pods)), **(changed or {})}
    start = START + index * length_s
    return Sample(
        window=Window(start=start, end=start + length_s),
        pods=pods,
        values={name: value for name, value in values.items() if name not in without},
    )

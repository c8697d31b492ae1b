"""Telling one symptom from the others: what a rule is, and what it found in one window."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.signals import Sample, Signal

FEW_REQUESTS = 10
"""With fewer finished requests in a window a share of them says nothing."""


class Symptom(StrEnum):
    """The eleven, in the order in which they are evaluated."""

    SLOW_START = "SlowStart"
    KV_PRESSURE = "KvPressure"
    SPECULATION_COSTS = "SpeculationCosts"
    SPIKY_STREAMS = "SpikyStreams"
    SLOW_STREAMS = "SlowStreams"
    QUEUE_WAIT = "QueueWait"
    SLOW_PREFILL = "SlowPrefill"
    PREFIX_MISSES = "PrefixMisses"
    CAP_TOO_LOW = "CapTooLow"
    HOST_BOUND = "HostBound"
    DEVICE_BOUND = "DeviceBound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A threshold with hysteresis: a symptom is entered above one value and left below another.

    Where small values are the sign, `enter` is below `leave`.
    """

    enter: float
    leave: float

    def shows(self, value: float, is_held: bool) -> bool:
        """Whether a value speaks for the symptom."""
        if self.enter >= self.leave:
            return value > (self.leave if is_held else self.enter)
        return value < (self.leave if is_held else self.enter)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a rule looks at.

    Attributes:
        caps: camelCase name of a setting -> value in force, of those that are known.
        is_held: whether the symptom was there before, so that its other thresholds hold.
    """

    sample: Sample
    policy: Policy
    caps: Mapping[str, float]
    is_held: bool

    def get(self, signal: Signal) -> float | None:
        """A signal of the window."""
        return self.sample.get(signal)

    def attainment(self, name: str) -> float | None:
        """Share of requests within a target; None if it is not set or nobody was judged."""
        if name not in self.policy.targets:
            return None
        return attainment(self.sample, name)

    def misses(self, name: str) -> bool:
        """Whether fewer requests than wanted are within a target."""
        share = self.attainment(name)
        return share is not None and share < self.policy.targets[name].attainment


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule says of one window.

    Attributes:
        is_shown: None if it could not be evaluated.
        evidence: figures that it was told by.
        lack: what is missing, if it could not be evaluated.
    """

    symptom: Symptom
    is_shown: bool | None
    evidence: Mapping[str, float] = field(default_factory=dict)
    lack: str = ""


Rule = Callable[[View], Finding]

_JUDGED = {
    "ttft": (Signal.TTFT_WITHIN, Signal.TTFT_JUDGED),
    "itl": (Signal.ITL_WITHIN, Signal.ITL_JUDGED),
    "e2e": (Signal.E2E_WITHIN, Signal.E2E_JUDGED),
}


def attainment(sample: Sample, name: str) -> float | None:
    """Share of requests within a target."""
    return sample.ratio(*_JUDGED[name])


def per_request(sample: Sample, signal: Signal) -> float | None:
    """A count per finished request, None with too few of them."""
    finished = sample.get(Signal.FINISHED)
    return sample.ratio(signal, Signal.FINISHED) if finished and finished >= FEW_REQUESTS else None

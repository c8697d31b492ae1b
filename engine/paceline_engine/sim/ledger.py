"""What clients saw: every first token and every end exactly, gaps to half a percent.

The recorder's histograms have the engine's coarse buckets; a report wants percentiles.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core.arrays import Float64
from paceline_engine.core.plan import StepOutputs
from paceline_engine.core.request import Finished, Refusal
from paceline_engine.sim.requests import SimRequest

_GROWTH = 1.005
_LEAST_S = 1e-6
_NUM_BINS = int(math.log(1e5 / _LEAST_S) / math.log(_GROWTH)) + 1


class FineHistogram:
    """Durations in bins half a percent wide, from a microsecond to a day. Mutable."""

    __slots__ = ("_counts", "max_s", "total_s")

    def __init__(self) -> None:
        self._counts = np.zeros(_NUM_BINS, dtype=np.int64)
        self.max_s = 0.0
        self.total_s = 0.0

    @property
    def count(self) -> int:
        """Durations seen."""
        return int(self._counts.sum())

    def add(self, duration_s: float, times: int) -> None:
        """One duration, so many times."""
        scaled = math.log(max(duration_s, _LEAST_S) / _LEAST_S) / math.log(_GROWTH)
        self._counts[min(int(scaled), _NUM_BINS - 1)] += times
        self.max_s = max(self.max_s, duration_s)
        self.total_s += duration_s * times

    def add_many(self, durations_s: Float64) -> None:
        """Several durations."""
        scaled = np.log(np.maximum(durations_s, _LEAST_S) / _LEAST_S) / math.log(_GROWTH)
        np.add.at(self._counts, np.minimum(scaled.astype(np.intp), _NUM_BINS - 1), 1)
        self.max_s = max(self.max_s, float(durations_s.max()))
        self.total_s += float(durations_s.sum())

    def quantile(self, share: float) -> float:
        """The duration that `share` of all are not above, seconds; 0 if there is none."""
        total = self.count
        if not total:
            return 0.0
        at = int(np.searchsorted(np.cumsum(self._counts), max(1.0, share * total)))
        return min(self.max_s, float(_LEAST_S * _GROWTH ** (at + 0.5)))


@dataclass(slots=True, kw_only=True)
class Served:
    """One request as its client saw it. Mutable: filled in as it runs.

    Attributes:
        first_token_s, end_s: simulated time; NaN until known.
        reason: a finish reason, or `refused`; empty while it runs.
    """

    arrival_s: float
    num_prompt_tokens: int
    group: str
    tenant: str
    first_token_s: float = math.nan
    end_s: float = math.nan
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    reason: str = ""


class Ledger:
    """Mutable: the simulator writes, reports read.

    Attributes:
        served: every request taken or refused, by request id.
        gaps: between tokens of the same request, all requests together.
    """

    def __init__(self) -> None:
        self.served: list[Served] = []
        self.gaps = FineHistogram()
        self._last_s = np.full(1024, np.nan)
        self._same_ids: NDArray[np.int64] | None = None
        self._same_since_s = 0.0

    def arrived(self, request: SimRequest) -> int:
        """A request was sent; returns its id."""
        number = len(self.served)
        self.served.append(
            Served(
                arrival_s=request.arrival_s,
                num_prompt_tokens=len(request.prompt_token_ids),
                group=request.group,
                tenant=request.tenant,
            )
        )
        if number == len(self._last_s):
            self._last_s = np.concatenate((self._last_s, np.full(number, np.nan)))
        return number

    def refused(self, number: int, refusal: Refusal, now: float) -> None:
        """A request was not taken."""
        served = self.served[number]
        served.reason, served.end_s = f"refused with {refusal.status}", now

    def tokens(self, outputs: StepOutputs, now: float) -> None:
        """A step gave tokens."""
        ids = outputs.request_ids
        if ids is self._same_ids:  # the very same requests as in the last step, all together
            self.gaps.add(now - self._same_since_s, len(ids))
            self._same_since_s = now
            return
        self._settle()
        if not len(ids):
            return
        last = self._last_s[ids]
        is_first = np.isnan(last)
        if is_first.any():
            for number in ids[is_first].tolist():
                self.served[number].first_token_s = now
            last = last[~is_first]
        if len(last):
            self.gaps.add_many(now - last)
        self._last_s[ids] = now
        self._same_ids, self._same_since_s = ids, now

    def ended(self, finished: Finished, now: float) -> None:
        """A request is over."""
        served = self.served[finished.request_id]
        served.end_s, served.reason = now, str(finished.reason)
        served.num_output_tokens = finished.num_output_tokens
        served.num_cached_tokens = finished.num_cached_tokens

    def _settle(self) -> None:
        if self._same_ids is not None:
            self._last_s[self._same_ids] = self._same_since_s
            self._same_ids = None

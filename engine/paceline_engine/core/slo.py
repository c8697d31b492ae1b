"""Service level: did a request meet its targets, judged by its own numbers.

Time to first token and duration are single numbers. For the gaps between tokens a request's own
99th percentile counts (nearest rank): it lies within x exactly if at most one gap in a hundred is
longer than x, so counting gaps between the multiples of the target is enough and exact.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline_crds.metrics import SLO_FACTORS, SLO_RESULTS, SLO_SIGNALS, SLO_WITHIN
from paceline_crds.settings import EngineSettings
from paceline_engine.core.request import FinishReason
from paceline_engine.core.snapshot import Labels

_NUM_BINS = len(SLO_WITHIN)
_TARGET = SLO_FACTORS.index(1.0)
_BEYOND = _NUM_BINS - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SloTargets:
    """Targets in seconds; None is not set."""

    ttft: float | None = None
    itl: float | None = None
    e2e: float | None = None

    @classmethod
    def of(cls, settings: EngineSettings) -> "SloTargets":
        """The targets in force with these settings."""

        def seconds(ms: int | None) -> float | None:
            return None if ms is None else ms / 1e3

        return cls(
            ttft=seconds(settings.slo_ttft_ms),
            itl=seconds(settings.slo_itl_ms),
            e2e=seconds(settings.slo_e2e_ms),
        )

    @property
    def is_any_set(self) -> bool:
        """There is something to judge by."""
        return (self.ttft, self.itl, self.e2e) != (None, None, None)


def _edges(target: float | None) -> list[float]:
    return [] if target is None else [factor * target for factor in SLO_FACTORS]


class SloJudge:
    """Counts gaps per request while it runs and judges it when it ends. Mutable: the recorder's.

    Requests that are aborted by their client are not judged. A timeout or an error of the engine is
    bad; a timeout is also beyond every multiple of the targets of TTFT and duration.
    """

    def __init__(self, targets: SloTargets, num_rows: int) -> None:
        self._bins = np.zeros((num_rows, _NUM_BINS), dtype=np.int32)  # gaps of a row per multiple
        self._requests = dict.fromkeys(SLO_RESULTS, 0)
        self._observations = {
            (signal, within): 0 for signal in SLO_SIGNALS for within in SLO_WITHIN
        }
        self.retarget(targets)

    def retarget(self, targets: SloTargets) -> None:
        """New targets from now on; requests under way are judged by their gaps from here."""
        self.targets = targets
        self._ttft, self._itl, self._e2e = (
            _edges(targets.ttft),
            _edges(targets.itl),
            _edges(targets.e2e),
        )
        self._itl_edges = np.array(self._itl)
        self._bins[:] = 0

    @property
    def num_rows(self) -> int:
        """Rows that there is room for."""
        return len(self._bins)

    def grow(self, num_rows: int) -> None:
        """Make room for more requests."""
        bins = np.zeros((num_rows, _NUM_BINS), dtype=np.int32)
        bins[: len(self._bins)] = self._bins
        self._bins = bins

    def start(self, row: int) -> None:
        """A new request takes `row`; without a target there is nothing in it."""
        if self._itl:
            self._bins[row] = 0

    def gaps(self, rows: NDArray[np.int64], gaps: NDArray[np.float64]) -> None:
        """One gap of each row (each row once)."""
        if self._itl:
            self._bins[rows, np.searchsorted(self._itl_edges, gaps)] += 1

    def equal_gaps(self, rows: NDArray[np.int64], gaps: Sequence[float]) -> None:
        """The same gaps for each row (each row once)."""
        if not self._itl:
            return
        for index, count in Counter(bisect_left(self._itl, gap) for gap in gaps).items():
            self._bins[rows, index] += count

    def finish(self, row: int, reason: FinishReason, ttft: float | None, e2e: float) -> bool | None:
        """Judge an ended request.

        Args:
            row: its row.
            reason: how it ended.
            ttft: seconds, None if it never got a token.
            e2e: seconds from arrival to end.

        Returns:
            Good or not; None if it is not judged.
        """
        if reason is FinishReason.ABORT or not self.targets.is_any_set:
            return None
        is_good = True
        if reason is FinishReason.ERROR:
            is_good = False
        elif reason is FinishReason.TIMEOUT:
            is_good = False
            for signal, edges in (("ttft", self._ttft), ("e2e", self._e2e)):
                if edges:
                    self._observe(signal, _BEYOND)
        else:
            if self._ttft and ttft is not None:
                is_good &= self._observe("ttft", bisect_left(self._ttft, ttft))
            if self._itl:
                is_good &= self._judge_gaps(row)
            if self._e2e:
                is_good &= self._observe("e2e", bisect_left(self._e2e, e2e))
        self._requests["good" if is_good else "bad"] += 1
        return is_good

    def _judge_gaps(self, row: int) -> bool:
        """A request without gaps has nothing to observe and nothing against it."""
        bins: list[int] = self._bins[row].tolist()
        longer = total = sum(bins)
        if not total:
            return True
        for index in range(_BEYOND):
            longer -= bins[index]
            if 100 * longer <= total:
                return self._observe("itl", index)
        return self._observe("itl", _BEYOND)

    def _observe(self, signal: str, index: int) -> bool:
        """Count an observation in its multiple and in every larger one; was the target met."""
        for within in SLO_WITHIN[index:]:
            self._observations[signal, within] += 1
        return index <= _TARGET

    def requests(self) -> dict[Labels, float]:
        """Series of the counter of judged requests."""
        return {(result,): float(n) for result, n in self._requests.items()}

    def observations(self) -> dict[Labels, float]:
        """Series of the counter of observations."""
        return {key: float(n) for key, n in self._observations.items()}

    def target_series(self) -> dict[Labels, float]:
        """Series of the gauge of targets."""
        pairs = ((signal, getattr(self.targets, signal)) for signal in SLO_SIGNALS)
        return {(signal,): target for signal, target in pairs if target is not None}

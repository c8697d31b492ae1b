"""What histograms say of requests that ended well: noted one by one, counted many at once."""

import numpy as np

from paceline_crds import metrics
from paceline_engine.core.histogram import Histogram

_KEPT = 256
_FAMILIES = (
    metrics.E2E,
    metrics.INFERENCE_TIME,
    metrics.DECODE_TIME,
    metrics.TPOT,
    metrics.REQUEST_PROMPT_TOKENS,
    metrics.REQUEST_GENERATION_TOKENS,
    metrics.REQUEST_MAX_TOKENS,
    metrics.REQUEST_MAX_GENERATION,
    metrics.REQUEST_PREEMPTIONS,
)
Observed = tuple[float, float, float, float, int, int, int, int, int]
"""One value of each family, in their order; NaN: a request without outputs has none."""


class RequestTally:
    """Writes into the recorder's histograms. Mutable; the recorder's."""

    def __init__(self, histograms: dict[str, Histogram]) -> None:
        self._histograms = [histograms[family] for family in _FAMILIES]
        self._noted: list[Observed] = []

    def add(self, observed: Observed) -> None:
        """A request ended by a stop or by its length."""
        self._noted.append(observed)
        if len(self._noted) >= _KEPT:
            self.settle()

    def settle(self) -> None:
        """Count what was noted; due before histograms are read."""
        if not self._noted:
            return
        columns = np.array(self._noted, dtype=np.float64).T
        self._noted.clear()
        for histogram, values in zip(self._histograms, columns, strict=True):
            histogram.observe_many(values[~np.isnan(values)])

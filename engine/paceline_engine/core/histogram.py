"""A histogram with fixed bounds, cheap for one value and for a step's worth of values."""

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core.snapshot import HistogramData

_FEW = 4
"""So many values are counted one by one in less time than together."""


class Histogram:
    """Counts per bucket. A value on a bound belongs to the bucket below it (`le`)."""

    __slots__ = ("_array", "_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._array = np.array(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count one value, once or as often as it occurred."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def observe_many(self, values: NDArray[np.float64]) -> None:
        """Count many values."""
        if len(values) <= _FEW:
            for value in values.tolist():
                self.observe(value)
            return
        for index, count in enumerate(np.bincount(np.searchsorted(self._array, values))):
            self._counts[index] += int(count)
        self._sum += float(np.add.reduce(values))

    def data(self) -> HistogramData:
        """A copy for the snapshot."""
        return HistogramData(counts=self._counts.copy(), sum=self._sum)

"""How much real steps differ from what a cost model says: factors drawn from a recording.

Stretches of steps that followed each other are drawn, not single ones: a machine that is slow is
slow for a while, and a queue feels that where independent noise would average out.

Source: Künsch, The jackknife and the bootstrap for general stationary observations (1989).
"""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

_STRETCH = 32


class Jitter:
    """Factors on step times. Mutable: it uses up its generator.

    Args:
        ratios: measured over predicted, in the order of the steps (`step_cost.Fit.ratios`).
        rng: seeded by the caller.
    """

    def __init__(self, ratios: NDArray[np.float64], rng: Generator) -> None:
        if not len(ratios) or not (ratios > 0).all():
            raise ValueError(f"ratios must be positive and not empty, got {ratios[:5]}")
        # Around the end, so that the last steps are drawn as often as the others.
        self._ratios = np.concatenate((ratios, np.resize(ratios, _STRETCH - 1)))
        self._num_ratios, self._rng = len(ratios), rng
        self._drawn: list[float] = []

    def next(self) -> float:
        """One factor."""
        if not self._drawn:
            start = int(self._rng.integers(self._num_ratios))
            self._drawn = self._ratios[start : start + _STRETCH][::-1].tolist()
        return self._drawn.pop()

"""How much real steps differ from what a cost model says: factors drawn from a recording."""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

_DRAWN = 4096


class Jitter:
    """Factors on step times, drawn with replacement. Mutable: it uses up its generator.

    Args:
        ratios: measured over predicted (`step_cost.Fit.ratios`).
        rng: seeded by the caller.
    """

    def __init__(self, ratios: NDArray[np.float64], rng: Generator) -> None:
        if not len(ratios) or not (ratios > 0).all():
            raise ValueError(f"ratios must be positive and not empty, got {ratios[:5]}")
        self._ratios, self._rng = ratios, rng
        self._drawn: list[float] = []

    def next(self) -> float:
        """One factor."""
        if not self._drawn:
            self._drawn = self._rng.choice(self._ratios, _DRAWN).tolist()
        return self._drawn.pop()

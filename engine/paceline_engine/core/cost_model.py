"""How long a step will take, in milliseconds, learned online from finished steps.

A Kalman filter over five weights (per step, per prefill token, per decode token, per token of KV
read, per pair of causal attention) that wander slowly: it follows a change of speed, and an hour of
equal steps blows nothing up. Errors count relatively, since a step of 400 ms strays by more
milliseconds than one of 4. No weight is negative: no kind of work saves time.

The heartbeat needs the order of magnitude of the step in flight; the governor needs more and keeps
a margin of its own (`governor`).
"""

import numpy as np

from paceline_engine.core.arrays import Float64
from paceline_engine.core.step_features import StepFeatures

_SCALES = np.array([1.0, 1e-2, 1e-2, 1e-4, 1e-5])
"""Brings the sizes of usual steps to one order of magnitude."""
_NOISE_VARIANCE = 0.02
"""Of one measurement, relative to it: steps on a shared machine stray by a seventh."""
_DRIFT = 1e-4
"""Relative variance that a weight gains from step to step."""
_PRIOR_VARIANCE = 1e4
_MIN_OBSERVED = 3
_SHORTEST_MS = 1e-3


class StepCostModel:
    """Online estimate. Mutable; learns in the order of the steps.

    Args:
        first_guess_ms: the answer before three steps were seen; meant to be long.

    Attributes:
        num_observed: steps learned from.
    """

    def __init__(self, *, first_guess_ms: float = 1000.0) -> None:
        self.num_observed = 0
        self._first_guess_ms = first_guess_ms
        self._weights: Float64 = np.zeros(len(_SCALES))
        self._covariance: Float64 = np.eye(len(_SCALES)) * _PRIOR_VARIANCE

    @property
    def is_warm(self) -> bool:
        """Whether predictions come from steps that were seen."""
        return self.num_observed >= _MIN_OBSERVED

    def predict_ms(self, features: StepFeatures) -> float:
        """Milliseconds of a step of these sizes; never negative."""
        if not self.is_warm:
            return self._first_guess_ms
        return float(self._weights @ _vector(features))

    def observe(self, features: StepFeatures, spent_ms: float) -> None:
        """Learn from a finished step."""
        spent_ms = max(spent_ms, _SHORTEST_MS)
        x = _vector(features) / spent_ms  # relative: x @ weights should be 1
        covariance, weights = self._covariance, self._weights
        gain = covariance @ x
        gain /= float(x @ gain) + _NOISE_VARIANCE
        weights += gain * (1.0 - float(weights @ x))
        np.maximum(weights, 0.0, out=weights)
        covariance -= np.outer(gain, x @ covariance)
        diagonal = covariance.reshape(-1)[:: len(_SCALES) + 1]
        diagonal += _DRIFT * (weights * weights + 1e-6)
        np.minimum(diagonal, _PRIOR_VARIANCE, out=diagonal)
        self.num_observed += 1

    def cost(self, *, context: int) -> tuple[float, float]:
        """What more prompt tokens cost in a step, for a request with `context` computed ones.

        Returns:
            (a, b): n tokens add `a * n + b * n * n` milliseconds.
        """
        per = self._weights * _SCALES
        pair = float(per[4])
        return float(per[1] + per[3]) + pair * (context + 0.5), pair / 2


def _vector(features: StepFeatures) -> Float64:
    sizes = (
        1.0,
        features.num_prefill_tokens,
        features.num_decode_tokens,
        features.kv_tokens_read,
        features.attention_pairs,
    )
    scaled: Float64 = np.array(sizes) * _SCALES
    return scaled

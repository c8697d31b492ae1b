"""How long a step will take: milliseconds per token by kind, learned from finished steps.

A Kalman filter whose three weights (per step, per prefill token, per decode token) wander slowly,
so that it follows a change of speed and an hour of equal steps blows nothing up. It serves the
heartbeat, which needs the order of magnitude of the step in flight and no more.
"""

_NOISE_VARIANCE = 1.0  # of one measurement, ms^2
_DRIFT_VARIANCE = 1e-2  # of a weight from step to step
_PRIOR_VARIANCE = 1e4
_MIN_OBSERVED = 3
_SCALE = 1e-2  # tokens are fed in hundreds, so that the three features are of one order


class StepTimeModel:
    """Online estimate; mutable, owned by the step loop.

    Attributes:
        num_observed: steps learned from.
    """

    def __init__(self, *, first_guess_ms: float = 1000.0) -> None:
        self.num_observed = 0
        self._first_guess_ms = first_guess_ms
        self._weights = [0.0, 0.0, 0.0]
        self._covariance = [
            [_PRIOR_VARIANCE if row == column else 0.0 for column in range(3)] for row in range(3)
        ]

    def predict_ms(self, prefill_tokens: int, decode_tokens: int) -> float:
        """Milliseconds of a step with so many tokens; never negative.

        Before the first three steps it is the first guess, which is meant to be long.
        """
        if self.num_observed < _MIN_OBSERVED:
            return self._first_guess_ms
        features = _features(prefill_tokens, decode_tokens)
        return max(0.0, sum(w * x for w, x in zip(self._weights, features, strict=True)))

    def observe(self, prefill_tokens: int, decode_tokens: int, spent_ms: float) -> None:
        """Learn from a finished step."""
        x = _features(prefill_tokens, decode_tokens)
        p = self._covariance
        px = [row[0] * x[0] + row[1] * x[1] + row[2] * x[2] for row in p]
        gain = 1.0 / (_NOISE_VARIANCE + x[0] * px[0] + x[1] * px[1] + x[2] * px[2])
        weights = self._weights
        error = spent_ms - (weights[0] * x[0] + weights[1] * x[1] + weights[2] * x[2])
        for row in range(3):
            weights[row] += gain * px[row] * error
            for column in range(3):
                p[row][column] -= gain * px[row] * px[column]
            p[row][row] = min(p[row][row] + _DRIFT_VARIANCE, _PRIOR_VARIANCE)
        self.num_observed += 1


def _features(prefill_tokens: int, decode_tokens: int) -> tuple[float, float, float]:
    return 1.0, prefill_tokens * _SCALE, decode_tokens * _SCALE

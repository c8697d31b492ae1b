"""The governor: a target in milliseconds between two tokens becomes a step's prefill budget.

A running stream gets one token a step, so the step's time is the gap its reader sees. The prefill
share of a step is the largest whose *predicted* time, with a margin, stays inside the target:

- The prediction is the step cost model's (`cost_model`): tokens, context, size of the batch.
- The margin is a running quantile of measured over predicted time of steps with prefill, so a
  machine that strays keeps its tail inside the target, and a biased model corrects itself.
- Nothing is believed beyond what was seen: the share grows at most twofold over the largest that
  was measured, and starts small.
- Prefill is never stopped altogether: decodes that use up the target by themselves leave it a small
  share per step, so everybody who waits moves on.

Without a running stream nobody reads gaps, and there is no limit but the token budget.
"""

from math import sqrt

from paceline_engine.core.cost_model import StepCostModel
from paceline_engine.core.step_features import StepFeatures

FIRST_TOKENS = 32
"""Prefill tokens of a step before any was measured beside decodes."""
MIN_TOKENS = 16
"""Prefill goes on by so many tokens a step, whatever the target."""
_GROWTH = 2
_FORGET = 0.995
"""The largest measured share fades by this a step, so a change of load is learned anew."""
_QUANTILE = 0.9
_RATE = 0.03
_MARGINS = (1.0, 3.0)


class Governor:
    """Learns from every step; decides for those with streams. Mutable, one per scheduler.

    Attributes:
        model: the cost model, shared with whoever else predicts steps.
        margin: measured over predicted milliseconds that nine of ten steps with prefill stay below.
    """

    def __init__(self) -> None:
        self.model = StepCostModel()
        self.margin = 1.2
        self._largest = 0.0

    def observe(self, features: StepFeatures, spent_ms: float) -> None:
        """Learn from a finished step.

        Args:
            features: its sizes.
            spent_ms: since the step before it ended, or since it was planned if nothing ran.
        """
        if features.num_prefill_tokens and features.num_decode_tokens:
            if self.model.is_warm:
                predicted = self.model.predict_ms(features)
                is_over = spent_ms > predicted * self.margin
                rise = _QUANTILE if is_over else _QUANTILE - 1.0
                low, high = _MARGINS
                self.margin = min(max(self.margin + _RATE * rise, low), high)
            self._largest = max(self._largest * _FORGET, features.num_prefill_tokens)
        self.model.observe(features, spent_ms)

    def prefill_tokens(self, target_ms: float, decodes: StepFeatures, *, context: int) -> int:
        """Most prompt tokens that may join a step of these decodes.

        Args:
            target_ms: between two tokens of a stream.
            decodes: sizes of the step without prefill.
            context: computed tokens of the request that prefills first.
        """
        trusted = max(FIRST_TOKENS, int(_GROWTH * self._largest))
        if not self.model.is_warm:
            return FIRST_TOKENS
        left = target_ms / self.margin - self.model.predict_ms(decodes)
        if left <= 0:
            return MIN_TOKENS
        a, b = self.model.cost(context=context)
        if b > 0:
            fits = (sqrt(a * a + 4 * b * left) - a) / (2 * b)
        else:
            fits = left / a if a > 0 else trusted
        return max(MIN_TOKENS, min(trusted, int(min(fits, trusted))))

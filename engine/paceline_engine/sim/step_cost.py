"""How long a step takes, as a linear function of its sizes: fitted to recorded steps.

Time on a device is the sum of what each part of a step moves and computes, so a linear model with
weights that cannot be negative goes far; `device.RooflineCost` is the other choice, for machines
that were not recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline_engine.core.arrays import Bool, Float64
from paceline_engine.core.step_features import StepFeatures

TERMS = (
    "step",
    "row",
    "prefill_token",
    "decode_token",
    "kv_token",
    "attention_pair",
    "sampled_token",
)
_MIN_STEPS = 8
_PASSES = 3


class StepCost(Protocol):
    """Anything that can say how long a step takes."""

    def predict_ms(self, sizes: StepFeatures) -> float:
        """Milliseconds from the plan of a step to the plan of the next, > 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """Milliseconds of a step, and for each of its rows, tokens, ... one weight.

    Attributes:
        step: of any step; the others: for each one of their kind (`StepFeatures`).
    """

    step: float = 0.0
    row: float = 0.0
    prefill_token: float = 0.0
    decode_token: float = 0.0
    kv_token: float = 0.0
    attention_pair: float = 0.0
    sampled_token: float = 0.0

    def predict_ms(self, sizes: StepFeatures) -> float:
        """The weighted sum."""
        return (
            self.step
            + self.row * sizes.num_rows
            + self.prefill_token * sizes.num_prefill_tokens
            + self.decode_token * sizes.num_decode_tokens
            + self.kv_token * sizes.kv_tokens_read
            + self.attention_pair * sizes.attention_pairs
            + self.sampled_token * sizes.num_sampled
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted model and how far off it is.

    Attributes:
        cost: the model.
        ratios: [steps] measured over predicted, in the order of the steps.
        median_error, p90_error: of the relative error of one step, |measured - predicted| over
            measured.
        num_steps: that it was fitted to.
    """

    cost: LinearCost
    ratios: Float64
    median_error: float
    p90_error: float
    num_steps: int


def fit(sizes: Sequence[StepFeatures], measured_ms: Sequence[float]) -> Fit:
    """Non-negative least squares of the relative error, steps that stand far out left out.

    Relative, for 2 ms off would be useless for decodes of 3 ms; relative
    to the prediction of the pass before, because errors relative to noisy times favour a model that
    is too fast. Steps that took more than three times what that says (the machine was elsewhere) do
    not count for the weights; they stay in `ratios`.

    Args:
        sizes: of the steps.
        measured_ms: of the same steps, > 0.

    Raises:
        ValueError: fewer than 8 steps, or the two differ in number.
    """
    if len(sizes) != len(measured_ms):
        raise ValueError(f"{len(sizes)} steps have {len(measured_ms)} times; give one for each")
    if len(sizes) < _MIN_STEPS:
        raise ValueError(f"a fit needs {_MIN_STEPS} steps, got {len(sizes)}; record a longer run")
    x = matrix(sizes)
    y = np.asarray(measured_ms, dtype=np.float64)
    weights = _relative_nnls(x, y, y)
    for _ in range(_PASSES):
        predicted = np.maximum(x @ weights, 1e-9)
        usual = y <= 3 * predicted
        if usual.any():
            weights = _relative_nnls(x[usual], y[usual], predicted[usual])
    predicted = np.maximum(x @ weights, 1e-9)
    errors = np.abs(y - predicted) / y
    return Fit(
        cost=LinearCost(**dict(zip(TERMS, weights.tolist(), strict=True))),
        ratios=y / predicted,
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        num_steps=len(y),
    )


def matrix(sizes: Sequence[StepFeatures]) -> Float64:
    """[steps, terms] float64, in the order of `TERMS`."""
    return np.array(
        [
            (
                1,
                s.num_rows,
                s.num_prefill_tokens,
                s.num_decode_tokens,
                s.kv_tokens_read,
                s.attention_pairs,
                s.num_sampled,
            )
            for s in sizes
        ],
        dtype=np.float64,
    )


def _relative_nnls(x: Float64, y: Float64, unit: Float64) -> Float64:
    scale = np.maximum(np.abs(x).max(axis=0), 1e-12)  # so that no column drowns another
    weights: Float64 = nnls((x / scale) / unit[:, None], y / unit) / scale
    return weights


def nnls(a: Float64, b: Float64) -> Float64:
    """The x >= 0 with the least |a x - b|.

    Source: Lawson and Hanson, Solving Least Squares Problems, chapter 23 (active set).
    """
    num = a.shape[1]
    x = np.zeros(num)
    is_free = np.zeros(num, dtype=np.bool_)
    tolerance = 1e-10 * max(1.0, float(np.abs(a.T @ b).max()))
    for _ in range(10 * num):
        gradient = a.T @ (b - a @ x)
        gradient[is_free] = -np.inf
        best = int(gradient.argmax())
        if gradient[best] <= tolerance:
            break
        is_free[best] = True
        x = _solve_free(a, b, x, is_free)
    return x


def _solve_free(a: Float64, b: Float64, x: Float64, is_free: Bool) -> Float64:
    """Least squares over the free unknowns; those that would become negative are fixed at 0."""
    while True:
        wanted = np.zeros_like(x)
        wanted[is_free] = np.linalg.lstsq(a[:, is_free], b, rcond=None)[0]
        negative = is_free & (wanted <= 0)
        if not negative.any():
            return wanted
        step = (x[negative] / (x[negative] - wanted[negative])).min()
        x = x + step * (wanted - x)
        x[np.abs(x) < 1e-14] = 0.0
        is_free &= x > 0

"""The fit finds a model that is known, and copes with what real recordings hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.core.step_features import StepFeatures
from paceline_engine.sim.step_cost import TERMS, LinearCost, fit, matrix, nnls

KNOWN = LinearCost(
    step=3.0,
    row=0.02,
    prefill_token=0.08,
    decode_token=0.3,
    kv_token=0.0005,
    attention_pair=0.00002,
    sampled_token=0.1,
)


def any_steps(rng: np.random.Generator, count: int) -> list[StepFeatures]:
    found = []
    for _ in range(count):
        decodes = int(rng.integers(0, 32))
        chunks = rng.integers(1, 400, int(rng.integers(0, 3))).tolist() if decodes else [100]
        kv = int(rng.integers(1, 2000)) * decodes
        start = int(rng.integers(0, 1000))
        found.append(
            StepFeatures(
                num_rows=decodes + len(chunks),
                num_prefill_tokens=sum(chunks),
                num_decode_tokens=decodes,
                kv_tokens_read=kv + sum(start + n for n in chunks),
                attention_pairs=kv + sum(n * start + n * (n + 1) // 2 for n in chunks),
                num_sampled=decodes + int(rng.integers(0, len(chunks) + 1)),
            )
        )
    return found


def test_a_known_model_is_recovered_from_exact_times():
    steps = any_steps(np.random.default_rng(1), 300)
    found = fit(steps, [KNOWN.predict_ms(step) for step in steps])
    for term in TERMS:
        assert getattr(found.cost, term) == pytest.approx(getattr(KNOWN, term), rel=1e-5), term
    assert found.median_error < 1e-9


def test_noise_and_a_machine_that_was_elsewhere_move_predictions_little():
    rng = np.random.default_rng(2)
    steps = any_steps(rng, 600)
    exact = np.array([KNOWN.predict_ms(step) for step in steps])
    noisy = exact * rng.lognormal(0, 0.1, len(steps))
    noisy[::40] *= 8
    found = fit(steps, noisy.tolist())
    predicted = np.array([found.cost.predict_ms(step) for step in steps])
    assert np.median(np.abs(predicted - exact) / exact) < 0.03
    assert np.quantile(np.abs(predicted - exact) / exact, 0.99) < 0.15
    assert found.ratios.max() > 5  # the outliers are told, for jitter


def test_a_recording_without_any_prompt_still_fits_its_decodes():
    steps = [
        step for step in any_steps(np.random.default_rng(3), 200) if not step.num_prefill_tokens
    ]
    found = fit(steps, [KNOWN.predict_ms(step) for step in steps])
    assert found.median_error < 1e-6


def test_a_prediction_is_the_product_of_the_matrix():
    steps = any_steps(np.random.default_rng(4), 20)
    weights = np.array([getattr(KNOWN, term) for term in TERMS])
    assert [KNOWN.predict_ms(step) for step in steps] == pytest.approx(
        (matrix(steps) @ weights).tolist()
    )


def test_too_few_steps_and_missing_times_are_refused():
    steps = any_steps(np.random.default_rng(5), 8)
    with pytest.raises(ValueError, match="8 steps, got 7"):
        fit(steps[:7], [1.0] * 7)
    with pytest.raises(ValueError, match="one for each"):
        fit(steps, [1.0] * 7)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 12), st.integers(1, 6))
def test_least_squares_are_never_negative_and_meet_the_optimality_conditions(seed, rows, columns):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    x = nnls(a, b)
    gradient = a.T @ (b - a @ x)
    assert (x >= 0).all()
    assert (gradient <= 1e-7).all()
    assert np.abs(gradient[x > 0]).max(initial=0.0) < 1e-7

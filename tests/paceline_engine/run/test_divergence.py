"""Divergence of logits, against its definition."""

import math

import pytest
import torch

from paceline_engine.run.divergence import measure_divergence


def test_equal_logits_do_not_diverge() -> None:
    logits = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    measured = measure_divergence(logits, logits.clone())
    assert measured.by_measure() == {
        "mean_kl_nats": 0.0,
        "max_kl_nats": 0.0,
        "max_abs_logit": 0.0,
        "top1_agreement": 1.0,
    }


def test_each_measure_is_what_it_says() -> None:
    # Distributions (3/4, 1/4) and (1/2, 1/2); the second position is the same in both.
    right = torch.tensor([[math.log(3.0), 0.0], [1.0, 2.0]])
    other = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    measured = measure_divergence(right, other)
    kl = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert measured.max_kl_nats == pytest.approx(kl, rel=1e-6)
    assert measured.mean_kl_nats == pytest.approx(kl / 2, rel=1e-6)
    assert measured.max_abs_logit == pytest.approx(math.log(3.0), rel=1e-6)
    other[0] = torch.tensor([0.0, 1.0])
    assert measure_divergence(right, other).top1_agreement == 0.5


def test_a_logit_that_is_no_number_makes_the_divergence_none() -> None:
    right = torch.zeros(2, 5)
    other = right.clone()
    other[1, 3] = float("nan")
    assert math.isnan(measure_divergence(right, other).max_kl_nats)

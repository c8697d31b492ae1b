"""Quantities are compared by what they mean."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.resources import quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("500m", "0.5"),
        ("2", "2"),
        (2, "2"),
        ("16Gi", "17179869184"),
        ("1e3", "1000"),
        ("1E", "1000000000000000000"),
        ("1E2", "100"),
        ("-1k", "-1000"),
        (".5", "0.5"),
    ],
)
def test_a_text_means_an_amount(text: Any, amount: str) -> None:
    assert quantity.parse(text) == Decimal(amount)


@pytest.mark.parametrize("text", ["", "x", "1Q", "1 2", None, True, [], "1e999"])
def test_what_is_no_quantity_is_none(text: Any) -> None:
    assert quantity.parse(text) is None
    assert quantity.are_equal(text, text)


@given(st.integers(0, 10**15), st.sampled_from(["", "m", "k", "Ki", "Gi"]))
def test_the_canonical_text_means_the_same(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    assert quantity.are_equal(quantity.canonical(text), text)
    assert quantity.canonical(quantity.canonical(text)) == quantity.canonical(text)

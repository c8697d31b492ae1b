"""Numbers as status keeps them: what is rounded when it is made reads back as it was written."""

from collections.abc import Mapping

DIGITS = 4
"""Decimals; what is smaller says nothing about a deployment."""


def quantised(value: float) -> float:
    """The number that its text in status stands for."""
    return round(value, DIGITS)


def text(value: float) -> str:
    """A decimal without exponent and without idle zeros."""
    made = f"{value:.{DIGITS}f}".rstrip("0").rstrip(".")
    return "0" if made in {"-0", ""} else made


def figures(values: Mapping[str, float]) -> dict[str, float]:
    """Several numbers, rounded."""
    return {name: quantised(value) for name, value in values.items()}

"""What quantities mean."""

import pytest
from pydantic import TypeAdapter, ValidationError

from paceline_crds.quantities import Quantity, number_of


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16Gi", 16 << 30),
        ("1.5Ki", 1536),
        ("2", 2),
        ("3k", 3000),
        ("1M", 10**6),
        ("2Ei", 2 << 60),
        ("0.92", 0.92),
        ("500m", 0.5),
    ],
)
def test_a_quantity_is_a_number(text: str, number: float) -> None:
    assert float(number_of(text)) == number
    assert TypeAdapter(Quantity).validate_python(text) == text


@pytest.mark.parametrize("text", ["", "-1", "1e3", "16 Gi", "16GiB", "Gi", "1.Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Quantity).validate_python(text)


def test_a_whole_number_is_taken_for_its_text() -> None:
    assert TypeAdapter(Quantity).validate_python(1024) == "1024"

"""Durations as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds import durations


@pytest.mark.parametrize(
    ("text", "value_ms"),
    [("500ms", 500), ("2s", 2_000), ("1m30s", 90_000), ("1h", 3_600_000), ("0s", 0)],
)
def test_a_duration_is_the_sum_of_its_parts(text: str, value_ms: int) -> None:
    assert durations.parse_ms(text) == value_ms


@pytest.mark.parametrize(
    "text", ["", "5", "s", "1.5s", "-1s", "1d", "1 s", "123456s", "1s\n", "1h1h1h1h1h"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration like"):
        durations.parse_ms(text)


@given(st.integers(min_value=0, max_value=168 * 3_600_000))
def test_every_duration_is_written_so_that_it_is_read_back(value_ms: int) -> None:
    text = durations.format_ms(value_ms)
    assert durations.parse_ms(text) == value_ms
    assert len(text) <= durations.MAX_LENGTH

"""An annotation that a person spoilt is one that says nothing."""

import pytest

from paceline_operator.render import inputs


@pytest.mark.parametrize("annotation", ["", "no json", "[]", "[" * 100_000], ids=len)
def test_what_nobody_can_read_pins_nothing(annotation: str) -> None:
    assert inputs.decode(annotation) is None
    assert inputs.version_of(annotation) == 0
    assert inputs.boot_in(annotation) == {}

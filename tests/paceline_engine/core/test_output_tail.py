"""What running outputs are expected to become."""

import numpy as np
import pytest

from paceline_engine.core.output_tail import OutputTail


def expected(tail: OutputTail, *lengths: int) -> list[float]:
    return tail.expected(np.array(lengths, dtype=np.int32)).tolist()


def test_who_is_past_the_mean_is_expected_to_be_one_of_the_long_ones() -> None:
    tail = OutputTail()
    for _ in range(100):
        for _ in range(9):
            tail.observe(10)
        tail.observe(1000)
    start, past = expected(tail, 0, 64)
    assert 80 < start < 150
    assert past == pytest.approx(1000)


def test_nobody_is_expected_to_get_shorter_and_the_unseen_grow_by_half() -> None:
    tail = OutputTail()
    assert expected(tail, 0, 64) == [0, 96]
    for length in (0, 1, 5, 1000):
        tail.observe(length)
    lengths = list(range(0, 3000, 7))
    assert all(after >= now for after, now in zip(expected(tail, *lengths), lengths, strict=True))


def test_what_was_long_ago_is_forgotten_however_long_it_runs() -> None:
    tail = OutputTail()
    for _ in range(1000):
        tail.observe(1000)
    for _ in range(4000):
        tail.observe(8)
    assert expected(tail, 0)[0] == pytest.approx(8, abs=0.1)

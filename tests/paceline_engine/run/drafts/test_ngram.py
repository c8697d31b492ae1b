"""Prompt lookup proposes what followed the newest earlier occurrence of the longest suffix."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.run.drafts.ngram import lookup


def drafts(tokens: list[int], low: int = 2, high: int = 4, most: int = 3) -> list[int]:
    return lookup(np.array(tokens, dtype=np.int32), low, high, most).tolist()


def test_what_followed_the_suffix_is_proposed() -> None:
    assert drafts([1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5]
    assert drafts([1, 2, 3, 9, 1, 2], most=1) == [3]


def test_a_longer_suffix_is_worth_more_than_a_newer_occurrence() -> None:
    assert drafts([7, 1, 2, 30, 8, 1, 2, 40, 7, 1, 2], most=1) == [30]
    assert drafts([7, 1, 2, 30, 7, 1, 2, 40, 7, 1, 2], most=1) == [40]


def test_a_suffix_shorter_than_the_least_is_no_match() -> None:
    assert drafts([1, 5, 6, 1]) == []
    assert drafts([1, 5, 6, 1], low=1) == [5, 6, 1]
    assert drafts([4, 1, 5, 6, 4, 1], low=3) == []


def test_no_suffix_is_longer_than_the_most() -> None:
    # Four tokens recur further back; with at most two, the newest occurrence of two wins.
    tokens = [1, 2, 3, 4, 50, 9, 3, 4, 60, 1, 2, 3, 4]
    assert drafts(tokens, high=4, most=1) == [50]
    assert drafts(tokens, high=2, most=1) == [60]


def test_texts_that_are_too_short_have_no_drafts() -> None:
    assert drafts([1]) == drafts([1, 1]) == []
    assert drafts([1, 1], low=1) == [1]


def slow_lookup(tokens: list[int], low: int, high: int, most: int) -> list[int]:
    for length in range(min(high, len(tokens) - 1), low - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                return tokens[end : end + most]
    return []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(1, 5),
)
def test_it_agrees_with_a_search_in_plain_words(
    tokens: list[int], low: int, more: int, most: int
) -> None:
    assert drafts(tokens, low, low + more, most) == slow_lookup(tokens, low, low + more, most)

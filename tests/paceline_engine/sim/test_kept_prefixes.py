"""Which prefixes are shared among those that stay, against the chains themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.core.request_log import shared_prefixes
from paceline_engine.sim.kept_prefixes import kept_prefixes

TEXTS = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=10)


def common(left: str, right: str) -> int:
    """Length of the longest common prefix."""
    return next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )


@given(TEXTS, st.data())
def test_what_the_kept_ones_share_is_found_without_the_others(texts, data):
    chains = [[text[: end + 1].encode() for end in range(len(text))] for text in texts]
    shared = shared_prefixes(chains, [len(text) for text in texts])
    kept = sorted(data.draw(st.sets(st.integers(0, len(texts) - 1))))
    found = kept_prefixes([owner for owner, _ in shared], [count for _, count in shared], kept)
    for place, (owner, count) in enumerate(found):
        text = texts[kept[place]]
        best = max((common(text, texts[index]) for index in kept[:place]), default=0)
        assert count == best
        assert (owner >= 0) == (count > 0)
        assert owner < place
        if owner >= 0:
            assert common(text, texts[kept[owner]]) >= count


def test_an_owner_that_comes_later_is_refused():
    with pytest.raises(ValueError, match="earlier request than 0, got 1"):
        kept_prefixes([1, -1], [16, 0], [0, 1])

"""Drafts hold as far as they equal what was sampled in their places."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline_kernels import ops
from paceline_kernels.errors import DTypeError, ImplUnavailableError, ShapeError


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize("impl", ["reference", "torch", "cpu"])
def test_the_leading_equal_drafts_of_each_row_hold(impl: str) -> None:
    drafts = ints(5, 6, 7, 8, 9, 1, 2)
    counts = ints(3, 0, 2, 2)
    # Rows: all hold; none proposed; the first is wrong (the second is not looked at); one holds.
    tokens = ints(5, 6, 7, 70, 3, 4, 9, 40, 1, 3, 30)
    accepted = ops.verify_drafts(tokens, drafts, counts, impl=impl)
    assert accepted.tolist() == [3, 0, 0, 1]


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=4), max_size=5))
def test_the_fast_way_agrees_with_the_reference(rows: list[list[tuple[int, int]]]) -> None:
    drafts = ints(*(draft for row in rows for draft, _ in row))
    tokens = ints(*(token for row in rows for token in (*(token for _, token in row), 9)))
    counts = ints(*map(len, rows))
    fast = ops.verify_drafts(tokens, drafts, counts, impl="torch")
    assert torch.equal(fast, ops.verify_drafts(tokens, drafts, counts, impl="reference"))


def test_arguments_that_do_not_fit_are_refused() -> None:
    drafts, counts, tokens = ints(1, 2), ints(2), ints(1, 2, 3)
    with pytest.raises(ShapeError, match="tokens must be"):
        ops.verify_drafts(tokens[:2], drafts, counts)
    with pytest.raises(ShapeError, match="num_drafts must be >= 0 and sum up to drafts 2"):
        ops.verify_drafts(tokens, drafts, ints(3)[:1])
    with pytest.raises(ShapeError, match="num_drafts must be >= 0"):
        ops.verify_drafts(ints(1, 2, 3, 4), drafts, ints(3, -1))
    with pytest.raises(DTypeError, match="drafts must be int64"):
        ops.verify_drafts(tokens, drafts.int(), counts)
    with pytest.raises(ImplUnavailableError, match="impl must be one of"):
        ops.verify_drafts(tokens, drafts, counts, impl="magic")

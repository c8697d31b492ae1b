import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_kernels import ops


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


@settings(max_examples=30)
@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=5), max_size=4))
def test_the_kernel_agrees_with_the_reference(rows):
    drafts = ints(*(draft for row in rows for draft, _ in row))
    tokens = ints(*(token for row in rows for token in (*(token for _, token in row), 9)))
    counts = ints(*map(len, rows))
    accepted = ops.verify_drafts(tokens, drafts, counts, impl="triton")
    assert torch.equal(accepted, ops.verify_drafts(tokens, drafts, counts, impl="reference"))


def test_more_drafts_than_a_block_are_followed_to_the_first_that_is_wrong():
    for wrong in (0, 31, 32, 69, None):
        drafts = torch.arange(70)
        tokens = torch.cat([drafts, ints(5)])
        if wrong is not None:
            tokens[wrong] += 1
            tokens[-2] += 7  # another one behind it changes nothing
        accepted = ops.verify_drafts(tokens, drafts, ints(70), impl="triton")
        assert accepted.tolist() == [70 if wrong is None else wrong]

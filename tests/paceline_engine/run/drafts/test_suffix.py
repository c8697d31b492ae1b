"""Suffix decoding proposes what mostly followed, and forgets what is oldest."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import AddedRequest, StepPlan
from paceline_engine.core.request import SamplingParams
from paceline_engine.run.batch import Batch
from paceline_engine.run.drafts.proposer import ComputedStep
from paceline_engine.run.drafts.suffix import SuffixProposer
from paceline_engine.run.drafts.suffix_tree import SuffixTree, Text
from paceline_kernels.decoder import DecoderBatch

LIMITS = EngineLimits(
    num_blocks=64,
    block_size=8,
    max_model_len=200,
    max_slots=4,
    max_step_tokens=64,
    vocab_size=100,
    eos_token_ids=(2,),
    cache_root=b"",
)


def drafts(text: list[int], most: int = 4) -> list[int]:
    tree = SuffixTree()
    tree.extend([], text)
    return tree.draft(text, most)[0]


def test_the_most_frequent_continuation_is_proposed() -> None:
    assert drafts([1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3, 8, 1, 2], most=1) == [3]


def test_the_longest_suffix_decides() -> None:
    assert drafts([7, 1, 2, 30, 8, 1, 2, 40, 9, 1, 2, 40, 7, 1, 2], most=1) == [30]


def test_drafts_end_where_they_become_unlikely() -> None:
    # After 1 2 came seven different tokens, once each.
    text = [token for follower in range(10, 17) for token in (1, 2, follower)] + [1, 2]
    assert drafts(text) == []


def test_a_short_match_proposes_little() -> None:
    assert drafts([5, 1, 2, 3, 4, 5]) == [1, 2]


def test_nothing_is_proposed_for_what_was_never_seen() -> None:
    assert drafts([1, 2, 3]) == drafts([]) == []


@given(st.lists(st.lists(st.integers(0, 3), max_size=40), max_size=4))
def test_a_text_that_is_taken_back_leaves_nothing(texts: list[list[int]]) -> None:
    tree = SuffixTree()
    for text in texts:
        tree.extend([], text)
    for text in texts:
        tree.remove(text)
    assert tree.num_nodes == 0
    assert tree.draft([0], 4) == ([], 0.0)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 60))
def test_a_text_may_grow_in_parts(tokens: list[int], cut: int) -> None:
    whole, parts = Text(SuffixTree()), Text(SuffixTree())
    whole.extend(tokens)
    parts.extend(tokens[:cut])
    parts.extend(tokens[cut:])
    assert whole.tokens == parts.tokens
    assert whole.tree.num_nodes == parts.tree.num_nodes
    assert whole.tree.draft(tokens, 5) == parts.tree.draft(tokens, 5)


def plan(added: tuple[AddedRequest, ...] = (), removed: tuple[int, ...] = ()) -> StepPlan:
    none = np.empty(0, dtype=np.int32)
    return StepPlan(
        step_id=0,
        removed_slots=np.array(removed, dtype=np.int32),
        added=added,
        slots=none,
        starts=none,
        num_tokens=none,
        num_drafts=none,
        samples=none.astype(np.bool_),
        epochs=none,
        request_ids=none.astype(np.int64),
    )


def computed(start: StepPlan) -> ComputedStep:
    """A step without rows."""
    none, bounds = torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    inputs = DecoderBatch(
        token_ids=none,
        positions=none,
        slot_mapping=none,
        block_tables=torch.zeros(0, 1, dtype=torch.int32),
        cu_seqlens_q=bounds,
        seq_lens=bounds[:0],
        logit_rows=none,
    )
    return ComputedStep(plan=start, inputs=inputs, hidden=None, yielded=None)


def serve(proposer: SuffixProposer, batch: Batch, prompt: list[int], output: list[int]) -> list:
    """A request in slot 0 that says `output`; its drafts before each of its tokens."""
    known = np.array(prompt, dtype=np.int32)
    request = AddedRequest(
        slot=0,
        request_id=1,
        epoch=0,
        token_ids=known,
        num_prompt_tokens=len(prompt),
        num_computed_tokens=0,
        params=SamplingParams(),
    )
    start = plan(added=(request,), removed=(0,))
    batch.apply(start)
    proposer.follow(computed(start))
    proposed = []
    for at, token in enumerate(output):
        batch.token_ids[0, len(prompt) + at] = token
        lengths = np.array([len(prompt) + at + 1])
        found = proposer.propose(np.array([0]), lengths, 4)[0]
        proposed.append(found[found >= 0].tolist())
    return proposed


def test_past_outputs_help_later_requests_and_the_oldest_are_forgotten() -> None:
    batch = Batch(LIMITS, engine_seed=0)
    proposer = SuffixProposer(batch, past_nodes=700)
    output = list(range(30, 50))
    assert serve(proposer, batch, [1, 2, 3], output)[5] == []
    assert serve(proposer, batch, [4, 5, 6], output)[5] == [36, 37, 38, 39]
    for number in range(1, 4):  # others push it out
        serve(proposer, batch, [7, 8], list(range(100 * number, 100 * number + 25)))
    assert serve(proposer, batch, [4, 5, 6], output)[5] == []

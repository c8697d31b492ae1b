"""What a step's time depends on, read off its plan: the inputs of every cost model.

Learners (the governor's, online) and the simulator's fit use the same numbers, so what one of them
learned means the same to the other.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFeatures:
    """Sizes of one step.

    Attributes:
        num_rows: requests that take part.
        num_prefill_tokens, num_decode_tokens: computed tokens; they add up to all of the step. A
            row with one known token that yields one is decode, its drafts included.
        kv_tokens_read: tokens whose keys and values attention reads, each row its whole context;
            what the memory traffic of decodes grows with.
        attention_pairs: (query, key) pairs of causal attention; what the arithmetic of prefill
            grows with. Of a step of single tokens it equals `kv_tokens_read`.
        num_sampled: positions that need logits, one per draft and one per row that yields.
    """

    num_rows: int
    num_prefill_tokens: int
    num_decode_tokens: int
    kv_tokens_read: int
    attention_pairs: int
    num_sampled: int

    @property
    def num_tokens(self) -> int:
        """All tokens that the step computes."""
        return self.num_prefill_tokens + self.num_decode_tokens


def of(plan: StepPlan) -> StepFeatures:
    """Sizes of a plan: a few vector operations, and Python for each chunk of a prompt."""
    num_tokens = int(np.add.reduce(plan.num_tokens))
    kv_tokens = int(np.add.reduce(plan.starts)) + num_tokens
    num_yielding = int(np.count_nonzero(plan.samples))
    if len(plan.draft_tokens):
        num_decode, pairs = _count_rows(plan, num_tokens)
    else:
        num_decode, pairs = num_yielding, kv_tokens
        if num_tokens > len(plan.slots):
            first = int((plan.num_tokens > 1).argmax())  # decodes stand before
            for start, n, yields in zip(
                plan.starts[first:].tolist(),
                plan.num_tokens[first:].tolist(),
                plan.samples[first:].tolist(),
                strict=True,
            ):
                num_decode -= yields and n > 1
                pairs += (n - 1) * start + n * (n - 1) // 2
    return StepFeatures(
        num_rows=len(plan.slots),
        num_prefill_tokens=num_tokens - num_decode,
        num_decode_tokens=num_decode,
        kv_tokens_read=kv_tokens,
        attention_pairs=pairs,
        num_sampled=num_yielding + len(plan.draft_tokens),
    )


def _count_rows(plan: StepPlan, num_tokens: int) -> tuple[int, int]:
    """Tokens of decodes, their drafts included, and attention pairs, of rows of any kind."""
    is_decode = plan.samples & (plan.num_tokens - plan.num_drafts == 1)
    tokens = plan.num_tokens.astype(np.int64)
    # Each row's t * start + t * (t + 1) / 2, summed up.
    own = (int(tokens @ tokens) + num_tokens) // 2
    pairs = int(tokens @ plan.starts.astype(np.int64)) + own
    return int(np.add.reduce(plan.num_tokens[is_decode])), pairs


def of_decodes(contexts: NDArray[np.int32]) -> StepFeatures:
    """Sizes of a step in which each row computes one token and yields one.

    Args:
        contexts: [rows] tokens that each row's attention reads, the new one included.
    """
    num_rows = len(contexts)
    kv_tokens = int(np.add.reduce(contexts))
    return StepFeatures(
        num_rows=num_rows,
        num_prefill_tokens=0,
        num_decode_tokens=num_rows,
        kv_tokens_read=kv_tokens,
        attention_pairs=kv_tokens,
        num_sampled=num_rows,
    )

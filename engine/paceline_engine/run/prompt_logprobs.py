"""Log-probabilities of prompt tokens, chunk by chunk, in slices of bounded memory."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from paceline_engine.core.arrays import Int64
from paceline_engine.core.plan import StepPlan, TokenLogprobs
from paceline_engine.run import slot_params
from paceline_engine.run.batch import Batch
from paceline_engine.run.logprobs import logprobs_of


def rows_that_ask(plan: StepPlan, batch: Batch) -> Int64:
    """Rows of the plan whose request wants prompt log-probabilities and computes prompt now."""
    flags = batch.params.flags[plan.slots]
    if not (flags & slot_params.PROMPT_LOGPROBS).any():
        return np.empty(0, dtype=np.int64)
    computes_prompt = plan.starts + 1 < batch.num_prompt[plan.slots]
    return np.flatnonzero(((flags & slot_params.PROMPT_LOGPROBS) != 0) & computes_prompt)


def gather_prompt_logprobs(
    plan: StepPlan,
    batch: Batch,
    hidden: Tensor,
    project: Callable[[Tensor], Tensor],
    slice_rows: int,
) -> dict[int, list[TokenLogprobs]]:
    """Entries for the prompt positions [start + 1, start + num_tokens] inside the prompt.

    Position p is predicted by the token at p - 1. Positions that were given out already (the
    request came back after preemption) are left out.

    Args:
        plan: the step.
        batch: tokens and parameters of the slots.
        hidden: [tokens, hidden] of the whole step.
        project: [n, hidden] to logits [n, vocab] float32.
        slice_rows: rows projected at a time.
    """
    rows = rows_that_ask(plan, batch)
    if not rows.size:
        return {}
    first_token = np.cumsum(plan.num_tokens) - plan.num_tokens
    gathered: dict[int, list[TokenLogprobs]] = {}
    for row in rows.tolist():
        slot, start = int(plan.slots[row]), int(plan.starts[row])
        first = max(start, int(batch.emitted_prompt_logprobs[slot]))
        last = min(start + int(plan.num_tokens[row]), int(batch.num_prompt[slot]) - 1)
        entries: list[TokenLogprobs] = []
        for begin in range(first, last, slice_rows):
            end = min(begin + slice_rows, last)
            offset = int(first_token[row]) - start
            logits = project(hidden[offset + begin : offset + end])
            tokens = batch.token_ids[slot, begin + 1 : end + 1].astype(np.int64)
            counts = np.full(len(tokens), batch.params.num_prompt_logprobs[slot])
            entries += logprobs_of(logits, tokens, counts)
        batch.emitted_prompt_logprobs[slot] = max(first, last)
        gathered[row] = entries
    return gathered

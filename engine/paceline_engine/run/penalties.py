"""Repetition, presence and frequency penalties, from the tokens themselves.

No counts are kept: a request's tokens are in the batch's table, and touching as many logits as it
has tokens is less work than a pass over the vocabulary. So nothing can be stale after preemption.
"""

import numpy as np
import torch
from torch import Tensor

from paceline_engine.core.arrays import Int64
from paceline_engine.run.batch import Batch


def apply_penalties(scores: Tensor, rows: Int64, slots: Int64, ends: Int64, batch: Batch) -> None:
    """Change scores in place.

    Repetition concerns every token of prompt and output, presence and frequency the output's.

    Args:
        scores: [n, vocab] float32, contiguous.
        rows: rows of scores that have penalties.
        slots: [n] slot of each row.
        ends: [n] tokens that each row has before the one to be sampled.
        batch: tokens and parameters of the slots.
    """
    params = batch.params
    flat = scores.view(-1)
    chosen, lengths = slots[rows], ends[rows]
    prompts = batch.num_prompt[chosen]
    at, owner = _history(scores, rows, chosen, np.zeros_like(lengths), lengths, batch)
    repetition = torch.from_numpy(params.repetition[chosen])[owner]
    seen = flat[at]
    # A token that occurs twice is written twice with the same value.
    flat[at] = torch.where(seen > 0, seen / repetition, seen * repetition)
    at, owner = _history(scores, rows, chosen, prompts, lengths, batch)
    if not at.numel():
        return
    frequency = torch.from_numpy(params.frequency[chosen])[owner]
    presence = torch.from_numpy(params.presence[chosen])[owner]
    flat[at] = flat[at] - presence
    flat.scatter_add_(0, at, -frequency)


def _history(
    scores: Tensor, rows: Int64, slots: Int64, starts: Int64, ends: Int64, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Places in the flat scores of the tokens [starts, ends) of each row, and whose they are."""
    counts = ends - starts
    owner = np.repeat(np.arange(len(rows)), counts)
    before = np.cumsum(counts) - counts
    positions = np.arange(int(counts.sum())) - np.repeat(before - starts, counts)
    tokens = batch.token_ids[slots[owner], positions].astype(np.int64)
    at = rows[owner] * scores.shape[1] + tokens
    return torch.from_numpy(at), torch.from_numpy(owner)

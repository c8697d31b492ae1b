"""Logit bias, and the tokens that a request may not take: rare parameters, row by row."""

import numpy as np
import torch
from torch import Tensor

from paceline_engine.core.arrays import Int32, Int64
from paceline_engine.run import slot_params
from paceline_engine.run.batch import Batch

_NEVER = float("-inf")


def apply_masks(scores: Tensor, flags: Int32, slots: Int64, ends: Int64, batch: Batch) -> None:
    """Change scores in place: bias, allowed tokens, bad words, no end before min_tokens.

    Args:
        scores: [n, vocab] float32.
        flags: [n] of the rows' slots.
        slots: [n].
        ends: [n] tokens that each row has before the one to be sampled.
        batch: tokens and parameters of the slots.
    """
    params = batch.params
    for row in np.flatnonzero(flags & slot_params.BIAS).tolist():
        ids, values = params.bias[int(slots[row])]
        scores[row].index_add_(0, torch.from_numpy(ids), torch.from_numpy(values))
    for row in np.flatnonzero(flags & slot_params.ALLOWED).tolist():
        allowed = torch.from_numpy(params.allowed[int(slots[row])])
        kept = scores[row, allowed]
        scores[row].fill_(_NEVER)
        scores[row, allowed] = kept
    for row in np.flatnonzero(flags & slot_params.BAD_WORDS).tolist():
        slot, end = int(slots[row]), int(ends[row])
        output = batch.token_ids[slot, int(batch.num_prompt[slot]) : end]
        banned = _completing(params.bad_words[slot], output)
        scores[row, torch.tensor(banned, dtype=torch.int64)] = _NEVER
    outputs = ends - batch.num_prompt[slots]
    too_early = (flags & slot_params.MIN_TOKENS != 0) & (outputs < params.min_tokens[slots])
    for row in np.flatnonzero(too_early).tolist():
        scores[row, torch.from_numpy(params.stop_ids[int(slots[row])])] = _NEVER


def _completing(bad_words: tuple[tuple[int, ...], ...], output: Int32) -> list[int]:
    """Tokens that would complete one of the words, given the output so far."""
    banned = []
    for word in bad_words:
        head = word[:-1]
        if not head or (len(output) >= len(head) and tuple(output[-len(head) :].tolist()) == head):
            banned.append(word[-1])
    return banned

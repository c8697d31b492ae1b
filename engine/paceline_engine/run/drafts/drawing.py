"""A model's guesses are drawn as its target draws: the same noise, penalties and masks."""

import numpy as np
from torch import Tensor

from paceline_engine.core.arrays import Int64
from paceline_engine.run.batch import Batch, SampledRows
from paceline_engine.run.sampler import Sampler


def draw(
    sampler: Sampler, batch: Batch, slots: Int64, ends: Int64, logits: Tensor
) -> tuple[Int64, list[int]]:
    """Draw a guess for each row and write it where it would stand.

    Args:
        sampler: of the target.
        batch: its token ids are written.
        slots: [n], each once.
        ends: [n] positions of the guesses.
        logits: [n, vocab] float32.

    Returns:
        [n] guesses, -1 in rows that have none, and those rows.
    """
    at = SampledRows(inputs=np.arange(len(slots)), slots=slots, ends=ends)
    drawn = sampler.sample(logits, at, keep_logprobs=False)
    batch.token_ids[slots, ends] = drawn.tokens
    failed = list(drawn.errors)
    drawn.tokens[failed] = -1
    return drawn.tokens, failed

"""Prompt lookup: what followed the last time that the text stood as it stands now.

Source: "Prompt Lookup Decoding", A. Saxena, 2023 (github.com/apoorvumang/prompt-lookup-decoding).
"""

import numpy as np

from paceline_engine.core.arrays import Int32, Int64
from paceline_engine.run.batch import Batch
from paceline_engine.run.drafts.proposer import ComputedStep


def lookup(tokens: Int32, min_lookup: int, max_lookup: int, max_drafts: int) -> Int32:
    """Tokens that followed the newest earlier occurrence of the longest suffix.

    A match may overlap the suffix, so a text that repeats itself goes on repeating.

    Args:
        tokens: [n] of one request, prompt and output.
        min_lookup: shortest suffix that is looked for.
        max_lookup: longest one.
        max_drafts: at most so many.

    Returns:
        At most max_drafts tokens, a view; none if no suffix occurred before.
    """
    count = len(tokens)
    longest = min(max_lookup, count - 1)
    if longest < min_lookup:
        return tokens[:0]
    # Ends of occurrences of the shortest suffix, then of longer and longer ones.
    ends = np.flatnonzero(tokens[:-1] == tokens[-1])
    length = 1
    while length < longest and ends.size:
        reaching = ends[ends >= length]
        longer = reaching[tokens[reaching - length] == tokens[count - 1 - length]]
        if not longer.size and length >= min_lookup:
            break
        ends, length = longer, length + 1
    if not ends.size:
        return tokens[:0]
    first = int(ends[-1]) + 1
    return tokens[first : first + max_drafts]


class NgramProposer:
    """Prompt lookup in each request's own tokens; keeps nothing, so nothing can be stale."""

    needs_hidden = False

    def __init__(self, batch: Batch, min_lookup: int, max_lookup: int) -> None:
        self._batch = batch
        self._min_lookup, self._max_lookup = min_lookup, max_lookup

    def follow(self, step: ComputedStep) -> None:
        """The tokens are in the batch."""

    def propose(self, slots: Int64, lengths: Int64, max_drafts: int) -> Int32:
        """See `Proposer`; a match close to the end is repeated until there are enough drafts."""
        drafts = np.full((len(slots), max_drafts), -1, dtype=np.int32)
        tokens = self._batch.token_ids
        for row, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
            found = lookup(tokens[slot, :length], self._min_lookup, self._max_lookup, max_drafts)
            if found.size:
                drafts[row] = np.resize(found, max_drafts)
        return drafts

"""Suffix decoding: what mostly followed, here or in past outputs, when the text stood as it does.

Each request has a tree of its own text, and all share one of past outputs; the tree whose drafts
are expected to hold longer proposes.

Source: SuffixDecoding, arXiv:2411.04975.
"""

from collections import deque

import numpy as np

from paceline_engine.core.arrays import Int32, Int64
from paceline_engine.run.batch import Batch
from paceline_engine.run.drafts.proposer import ComputedStep
from paceline_engine.run.drafts.suffix_tree import MAX_MATCH, SuffixTree, Text

PAST_NODES = 200_000
"""Some 40 MiB; the oldest outputs leave when there are more."""
MAX_LEARNED = 4096
"""Tokens of a prompt, its last ones, that are learned: a few milliseconds for each thousand."""


class SuffixProposer:
    """Trees by slot, which catch up when drafts are asked for, and one of past outputs.

    Outputs of one request help to draft another's; they never reach its text, because a draft
    counts only where the model says the same. Requests that decline drafts teach nothing.
    """

    needs_hidden = False

    def __init__(self, batch: Batch, past_nodes: int = PAST_NODES) -> None:
        self._batch = batch
        self._past_nodes = past_nodes
        self._own: dict[int, tuple[Text, int]] = {}  # slot -> its text, index of its first output
        self._first: dict[int, int] = {}  # slot -> position of the text's first token
        self._past = SuffixTree()
        self._outputs: deque[list[int]] = deque()

    def follow(self, step: ComputedStep) -> None:
        """Outputs of requests that left their slots become past ones."""
        for slot in step.plan.removed_slots.tolist():
            text, first_output = self._own.pop(slot, (None, 0))
            if text is None or len(text.tokens) <= first_output:
                continue
            output = text.tokens[max(0, first_output - MAX_MATCH) :]
            self._past.extend([], output)
            self._outputs.append(output)
            while self._past.num_nodes > self._past_nodes:
                self._past.remove(self._outputs.popleft())

    def propose(self, slots: Int64, lengths: Int64, max_drafts: int) -> Int32:
        """See `Proposer`."""
        drafts = np.full((len(slots), max_drafts), -1, dtype=np.int32)
        for row, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
            text = self._caught_up(slot, length)
            end = text.tokens[-MAX_MATCH:]
            own, own_score = text.tree.draft(end, max_drafts)
            past, past_score = self._past.draft(end, max_drafts)
            found = own if own_score >= past_score else past
            drafts[row, : len(found)] = found
        return drafts

    def _caught_up(self, slot: int, length: int) -> Text:
        """The text of a slot with all its known tokens."""
        known = self._own.get(slot)
        if known is None:
            num_prompt = int(self._batch.num_prompt[slot])
            first = max(0, num_prompt - MAX_LEARNED)
            known = self._own[slot] = Text(SuffixTree()), num_prompt - first
            self._first[slot] = first
        text = known[0]
        have = self._first[slot] + len(text.tokens)
        text.extend(self._batch.token_ids[slot, have:length].tolist())
        return text

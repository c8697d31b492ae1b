"""Keys and values of draft layers: under the target's block ids, guesses behind them apart.

A draft layer's KV of a token lies where the target's lies, so prefix hits, preemption and forks
need nothing more, and a block's bytes are those of both. A guess is written too: into the free
places of a request's own last block, where what is right replaces it later, and behind that into
scratch blocks of the slot, ids >= the pool's, which only draft layers have. A block that others
read is full of known tokens, so no guess can lie in it.

Nothing is computed while nobody asks for drafts. What is missing then, in blocks that a request
filled or hit, is noted and caught up when drafts are asked for.
"""

import numpy as np
import torch

from paceline_engine.core.arrays import Int32, Int64
from paceline_engine.core.plan import StepPlan
from paceline_engine.run.batch import Batch
from paceline_kernels.decoder import DecoderBatch


def scratch_blocks(max_slots: int, max_drafts: int, block_size: int) -> int:
    """Blocks behind the pool's that draft layers need for guesses, of all slots."""
    return max_slots * -(-max_drafts // block_size)


class DraftKv:
    """Which draft KV is right, and rows of tokens to compute over it. Mutable.

    Args:
        batch: slots and their block tables.
        num_blocks: of the pool; scratch blocks have the ids behind.
        max_drafts: most guesses behind a request's known tokens.

    Attributes:
        known: [slots] leading tokens of each request whose draft KV is right; 0 of free slots.
    """

    def __init__(self, batch: Batch, num_blocks: int, max_drafts: int) -> None:
        self.known: Int64 = np.zeros(len(batch.num_blocks), dtype=np.int64)
        self._batch = batch
        self._first_scratch = num_blocks
        self._width = -(-max_drafts // batch.block_size)
        self._is_filled = np.zeros(num_blocks, dtype=np.bool_)  # by block id

    def follow(self, plan: StepPlan) -> None:
        """Blocks that requests got hold nothing yet, but those that they hit."""
        self.known[plan.removed_slots] = 0
        if not plan.block_ids.size:
            return
        batch, size = self._batch, self._batch.block_size
        is_hit = np.zeros(len(plan.block_ids), dtype=np.bool_)
        for added in plan.added:
            own = np.flatnonzero(plan.block_slots == added.slot)
            is_hit[own[: added.num_computed_tokens // size]] = True
        self._is_filled[plan.block_ids[~is_hit]] = False
        for added in plan.added:
            num_hit = added.num_computed_tokens // size
            filled = self._is_filled[batch.block_tables[added.slot, :num_hit]]
            self.known[added.slot] = size * (num_hit if filled.all() else int(filled.argmin()))

    def note_computed(self, slots: Int64, ends: Int64) -> None:
        """Tokens [known, end) of these slots were computed, all of them known ones."""
        size = self._batch.block_size
        ends = np.minimum(ends, self._batch.num_blocks[slots] * size)  # the rest lies in scratch
        crossed = np.flatnonzero(ends // size > self.known[slots] // size)
        for row in crossed.tolist():
            slot = slots[row]
            filled = slice(int(self.known[slot]) // size, int(ends[row]) // size)
            self._is_filled[self._batch.block_tables[slot, filled]] = True
        self.known[slots] = ends

    def rows(self, slots: Int64, starts: Int64, ends: Int64, logit_rows: Int64) -> DecoderBatch:
        """Tokens [start, end) of each slot, end to end, as the batch has them.

        Args:
            slots: [n], each once.
            starts: [n], below ends.
            ends: [n], at most `max_drafts` behind what the slot's own blocks hold.
            logit_rows: places in the flat batch whose logits are wanted.
        """
        size = self._batch.block_size
        counts = ends - starts
        bounds = np.zeros(len(slots) + 1, dtype=np.int64)
        np.cumsum(counts, out=bounds[1:])
        total = int(bounds[-1])
        row_of = np.repeat(np.arange(len(slots)), counts)
        positions = np.arange(total) + np.repeat(starts - bounds[:-1], counts)
        tables = self._tables(slots, -(-int(ends.max()) // size))
        block, offset = np.divmod(positions, size)
        token_ids = self._batch.token_ids[slots[row_of], positions]
        return DecoderBatch(
            token_ids=torch.from_numpy(token_ids.astype(np.int64)),
            positions=torch.from_numpy(positions),
            slot_mapping=torch.from_numpy(tables[row_of, block] * np.int64(size) + offset),
            block_tables=torch.from_numpy(tables),
            cu_seqlens_q=torch.from_numpy(bounds.astype(np.int32)),
            seq_lens=torch.from_numpy(ends.astype(np.int32)),
            logit_rows=torch.from_numpy(logit_rows),
        )

    def _tables(self, slots: Int64, num_columns: int) -> Int32:
        """[n, num_columns]: a slot's own blocks, then its scratch ones."""
        own = self._batch.num_blocks[slots][:, None]
        columns = np.arange(num_columns)
        inside = np.minimum(columns, self._batch.block_tables.shape[1] - 1)
        # Columns behind a row's end are not read, but they must be ids.
        beyond = np.clip(columns - own, 0, self._width - 1)
        scratch = self._first_scratch + slots[:, None] * self._width + beyond
        tables = self._batch.block_tables[slots[:, None], inside]
        chosen: Int32 = np.where(columns < own, tables, scratch).astype(np.int32)
        return chosen

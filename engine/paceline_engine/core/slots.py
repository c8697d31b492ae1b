"""Running requests as arrays by slot, so that a step costs numpy calls and no Python per request.

A slot is a row in every array here and in the runner's buffers. The scheduler gives slots out.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.output_tail import OutputTail
from paceline_engine.core.tracked import TrackedRequest

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Rows = NDArray[np.intp]
"""Slots as an index: of numpy's own type, an index is several times cheaper than one of int32."""
AnyRows = NDArray[np.signedinteger[Any]]
"""The same, or as plans have them."""

_GROWTH_SHARE = 0.5
NUM_GROUPS = 1
"""KV groups (full attention now; sliding window and recurrent state later)."""
FULL = 0
"""Index of the group of full attention."""


class Slots:
    """Mutable arrays, owned by the scheduler. All are indexed by slot unless said otherwise.

    Attributes:
        computed: C, tokens whose KV is computed or planned.
        total: T, known tokens.
        in_flight: P, tokens that steps in flight will yield, their drafts apart.
        drafts_in_flight: drafts that a step in flight verifies; C counts them as if all held.
        owned: tokens that fit into the blocks of the table.
        limit: T at which the request ends with LENGTH.
        compute_end: C beyond which nothing is left to compute (the last token is never computed).
        num_prompt: prompt tokens.
        promised: blocks that admission expects the request to use in the end.
        epoch: grows whenever planned rows of the slot become void.
        last_step: the newest step that computes for the slot.
        request_id: [slots] int64, of who sits there or sat there last.
        is_prefilling: it wants more than one token, or needs Python for another reason.
        tokens: [slots, width] int32, known tokens; grows in width.
        tokens_by_block: the same memory as [slots, blocks, block_size].
        tables: [groups, slots, blocks] int32, block tables; num_blocks: [groups, slots].
        flat_tokens, flat_blocks, flat_tables: the same memory as [slots * width], as
            [slots * blocks, block_size], and the tables of full attention as [slots * blocks]; an
            index of one dimension (`entries`) is several times cheaper than one of two or three.
        ones, zeros, all_true: [slots] that nobody can write to; plans share parts of them.
        tracked: the request in each slot.
        num_to_come: blocks that running requests take beyond those they have, if each gets as long
            as it may: never less than `promised_blocks`, and known without a count.
    """

    def __init__(self, limits: EngineLimits) -> None:
        n = limits.max_slots
        self.block_size = limits.block_size
        self.computed = np.zeros(n, dtype=np.int32)
        self.total = np.zeros(n, dtype=np.int32)
        self.in_flight = np.zeros(n, dtype=np.int32)
        self.drafts_in_flight = np.zeros(n, dtype=np.int32)
        self.owned = np.zeros(n, dtype=np.int32)
        self.limit = np.zeros(n, dtype=np.int32)
        self.compute_end = np.zeros(n, dtype=np.int32)
        self.num_prompt = np.zeros(n, dtype=np.int32)
        self.promised = np.zeros(n, dtype=np.int32)
        self.epoch = np.zeros(n, dtype=np.int32)
        self.last_step = np.full(n, -1, dtype=np.int64)
        self.request_id = np.full(n, -1, dtype=np.int64)
        self.is_prefilling = np.zeros(n, dtype=np.bool_)
        self.is_seated = np.zeros(n, dtype=np.bool_)
        self._set_widths(
            np.zeros((NUM_GROUPS, n, 8), dtype=np.int32),
            np.zeros((n, 8 * limits.block_size), dtype=np.int32),
        )
        self.ones, self.zeros = np.ones(n, dtype=np.int32), np.zeros(n, dtype=np.int32)
        self.all_true = np.ones(n, dtype=np.bool_)
        for constant in (self.ones, self.zeros, self.all_true):
            constant.flags.writeable = False
        self.num_blocks = np.zeros((NUM_GROUPS, n), dtype=np.int32)
        self._order = np.empty(n, dtype=np.intp)
        self._num_ordered = 0
        self.tracked: list[TrackedRequest | None] = [None] * n
        self.num_seated = 0
        self._free = list(range(n - 1, -1, -1))
        self._is_stale = False
        self.num_to_come = 0
        self._num_promised = -1  # not counted since something changed that it depends on
        self._num_seen = -1  # outputs that had ended then
        self._final_blocks = np.zeros(n, dtype=np.int32)  # as it was counted, by slot

    @property
    def order(self) -> Rows:
        """[running] slots in the order of admission: a view, read it before anything changes."""
        return self._order[: self._num_ordered]

    @property
    def num_free(self) -> int:
        """Slots that nobody sits in."""
        return len(self._free)

    def at(self, slot: int) -> TrackedRequest:
        """The request in a slot that is taken."""
        tracked = self.tracked[slot]
        assert tracked is not None, f"slot {slot} is free"
        return tracked

    def seat(
        self, tracked: TrackedRequest, num_computed: int, blocks: Sequence[int], num_promised: int
    ) -> int:
        """Give a slot to a request that waited.

        Args:
            tracked: mutated.
            num_computed: its first tokens, whose KV is in the blocks.
            blocks: its table.
            num_promised: blocks that admission expects it to use in the end.
        """
        slot = self._free.pop()
        known, prompt = len(tracked.token_ids), tracked.num_prompt_tokens
        if tracked.limit > self.tokens.shape[1]:
            self._reserve(tracked.limit)
        self.tokens[slot, :known] = tracked.token_ids
        self.computed[slot] = num_computed
        self.total[slot] = known
        self.in_flight[slot] = 0
        self.drafts_in_flight[slot] = 0
        self.owned[slot] = len(blocks) * self.block_size
        self.limit[slot] = tracked.limit
        self.compute_end[slot] = compute_end = _compute_end(tracked)
        self.num_prompt[slot] = prompt
        self.last_step[slot] = -1
        self.request_id[slot] = tracked.request_id
        self.is_seated[slot] = self.is_prefilling[slot] = True
        self.num_blocks[FULL, slot] = len(blocks)
        self.tables[FULL, slot, : len(blocks)] = blocks
        self.promised[slot] = num_promised
        self.num_to_come += -(-compute_end // self.block_size) - len(blocks)
        self._num_promised = -1
        self.tracked[slot] = tracked
        tracked.slot = slot
        self._order[self._num_ordered] = slot
        self._num_ordered += 1
        self.num_seated += 1
        return slot

    def unseat(self, leaving: Sequence[TrackedRequest]) -> list[list[int]]:
        """Take slots back; planned rows of them become void.

        Returns:
            The blocks of each, tail first, still referenced: the caller releases them.
        """
        tables = []
        for tracked in leaving:
            slot = tracked.slot
            blocks: list[int] = self.blocks(slot)[::-1].tolist()
            tables.append(blocks)
            self.num_to_come += len(blocks) - -(-_compute_end(tracked) // self.block_size)
            self.epoch[slot] += 1
            self.is_seated[slot] = self.is_prefilling[slot] = False
            self.num_blocks[FULL, slot] = 0
            self.tracked[slot] = None
            tracked.slot = -1
            self._free.append(slot)
        self.num_seated -= len(leaving)
        self._num_promised = -1
        self._is_stale = True
        return tables

    def compact(self) -> None:
        """Drop slots that were taken back from `order`; due before a slot is given out again."""
        if self._is_stale:
            kept = self.order[self.is_seated[self.order]]
            self._num_ordered = len(kept)
            self._order[: self._num_ordered] = kept
            self._is_stale = False

    def known_tokens(self, slot: int) -> Int32:
        """[T] int32, a copy of the prompt and the outputs so far."""
        return self.tokens[slot, : self.total[slot]].copy()

    # -- block tables ------------------------------------------------------------------------

    def blocks(self, slot: int) -> Int32:
        """A view of the slot's block table."""
        return self.tables[FULL, slot, : self.num_blocks[FULL, slot]]

    def append_blocks(self, slot: int, blocks: list[int]) -> None:
        """Append blocks to one table."""
        start = int(self.num_blocks[FULL, slot])
        end = start + len(blocks)
        self.tables[FULL, slot, start:end] = blocks
        self.num_blocks[FULL, slot] = end
        self.owned[slot] = end * self.block_size
        self.num_to_come -= len(blocks)
        self._num_promised = -1

    def entries(self, slots: Rows, index: NDArray[np.integer[Any]]) -> Rows:
        """Where entry `index` of each table, and its tokens, stand in the flat arrays."""
        places: Rows = slots * self.tables.shape[2] + index
        return places

    def append_one_each(self, slots: Rows, blocks: Int32) -> None:
        """Append one block to each of several tables."""
        num_blocks = self.num_blocks[FULL]
        at = num_blocks[slots]
        self.flat_tables[self.entries(slots, at)] = blocks
        num_blocks[slots] = at + 1
        self.owned[slots] += self.block_size
        self.num_to_come -= len(slots)
        if self._num_promised >= 0:  # to count again takes several times as long
            self._num_promised -= int(np.count_nonzero(self._final_blocks[slots] > at))

    def truncate(self, slot: int, num_tokens: int) -> list[int]:
        """Keep the blocks of the first `num_tokens` (whole blocks); the others, tail first."""
        keep = num_tokens // self.block_size
        dropped = self.blocks(slot)[keep:][::-1].tolist()
        if dropped:
            self.num_blocks[FULL, slot] = keep
            self.owned[slot] = keep * self.block_size
            self.num_to_come += len(dropped)
            self._num_promised = -1
        return list(dropped)

    def promised_blocks(self, tail: OutputTail) -> int:
        """Blocks that running requests are expected to take beyond those they have.

        What admission expected of each, or half of the growth of outputs that are as long as theirs
        are now: a request that outlived its forecast goes on, but not all of them are at their
        longest at the same time.
        """
        if self._num_promised < 0 or self._num_seen != tail.num_seen:
            self._num_seen = tail.num_seen
            self.compact()
            order = self.order
            have, total = self.num_blocks[FULL][order], self.total[order]
            output = total - self.num_prompt[order]
            growth = tail.expected(output) - output
            final = np.minimum(total + _GROWTH_SHARE * growth, self.compute_end[order])
            blocks = np.maximum(self.promised[order], np.ceil(final / self.block_size))
            self._final_blocks[order] = blocks
            self._num_promised = int(np.add.reduce(np.maximum(blocks - have, 0)))
        return self._num_promised

    def forget_promises(self) -> None:
        """Requests have got longer: count again when somebody asks."""
        self._num_promised = -1

    def set_num_blocks(self, slots: Rows, num_blocks: Int32) -> None:
        """Tables of several slots have grown to [m] so many blocks, written before."""
        self.num_to_come -= int(np.add.reduce(num_blocks - self.num_blocks[FULL][slots]))
        self.num_blocks[FULL][slots] = num_blocks
        self.owned[slots] = num_blocks * self.block_size
        self._num_promised = -1

    # -- widths ------------------------------------------------------------------------------

    def _reserve(self, num_tokens: int) -> None:
        """Room for requests of that length; zeros() costs no memory before it is written to."""
        num_blocks = -(-num_tokens // self.block_size)
        have = self.tables.shape[2]
        # Odd, so that rows do not lie a power of two apart and share the same sets of the cache.
        num_blocks = max(num_blocks, 2 * have) | 1
        tables = np.zeros((NUM_GROUPS, len(self.total), num_blocks), dtype=np.int32)
        tables[:, :, :have] = self.tables
        tokens = np.zeros((len(self.total), num_blocks * self.block_size), dtype=np.int32)
        tokens[:, : self.tokens.shape[1]] = self.tokens
        self._set_widths(tables, tokens)

    def _set_widths(self, tables: Int32, tokens: Int32) -> None:
        self.tables, self.tokens = tables, tokens
        self.tokens_by_block = tokens.reshape(len(tokens), -1, self.block_size)
        self.flat_tokens = tokens.reshape(-1)
        self.flat_blocks = tokens.reshape(-1, self.block_size)
        self.flat_tables = tables[FULL].reshape(-1)


def _compute_end(tracked: TrackedRequest) -> int:
    """C beyond which nothing is left to compute."""
    return tracked.limit - 1 if tracked.request.params.max_tokens else tracked.num_prompt_tokens

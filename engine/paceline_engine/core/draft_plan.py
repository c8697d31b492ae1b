"""A step while it is being planned: rows can still be taken back, budget refunded."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core.lanes import LaneBudget
from paceline_engine.core.plan import AddedRequest, StepPlan
from paceline_engine.core.slots import FULL, AnyRows, Int32, Rows, Slots
from paceline_engine.core.tracked import TrackedRequest


def _int32(values: Iterable[int] = ()) -> Int32:
    return np.array(list(values), dtype=np.int32)


@dataclass(slots=True)
class RowTemplate:
    """Arrays of an all-decode step that stay the same until somebody comes or goes.

    Plans share them, so nobody may write to them.

    Attributes:
        at: the slots as an index.
    """

    at: Rows
    slots: Int32
    ones: Int32
    zeros: Int32
    samples: NDArray[np.bool_]
    epochs: Int32
    request_ids: NDArray[np.int64]

    @classmethod
    def of(cls, rows: AnyRows, slots: Slots) -> "RowTemplate":
        """For decodes in these slots."""
        n, at = len(rows), rows.astype(np.intp)
        epochs, request_ids = slots.epoch[at], slots.request_id[at]
        epochs.flags.writeable = request_ids.flags.writeable = False
        return cls(
            at,
            at.astype(np.int32),
            slots.ones[:n],
            slots.zeros[:n],
            slots.all_true[:n],
            epochs,
            request_ids,
        )


@dataclass(frozen=True, slots=True)
class PlannedDrafts:
    """Draft tokens that a step verifies.

    Attributes:
        counts: [decodes] int32, for each row of the decodes.
        tokens: [decodes, width] int32, valid up to the row's count.
    """

    counts: Int32
    tokens: Int32

    def flat(self, kept: NDArray[np.bool_]) -> tuple[Int32, Int32]:
        """Counts of the kept decodes, and their drafts row by row."""
        counts, tokens = self.counts[kept], self.tokens[kept]
        return counts, tokens[np.arange(tokens.shape[1]) < counts[:, None]]


@dataclass(slots=True)
class DraftPlan:
    """Mutable; becomes a `StepPlan` by `build`. Blocks are in the tables already.

    Attributes:
        lanes: what is left of the budget.
        decodes: rows of one token each; None until they are planned.
        dropped: slots that were taken back altogether.
        skipped: decodes that keep their slot, but are not planned in this step.
        chunks: slot -> tokens, for prefill rows in their order.
        drafts: what is verified with the decodes; planned after all rows that may be taken back.
        added: slot -> request that takes the slot.
        is_refused: somebody did not get blocks; nobody behind takes those.
        victims: running requests, cheapest to preempt first, once somebody needs blocks.
        num_preempted: requests that lost their slot in this step.
        num_recomputed: tokens that requests which come back have to compute again.
    """

    step_id: int
    lanes: LaneBudget
    decodes: RowTemplate | None = None
    dropped: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    chunks: dict[int, int] = field(default_factory=dict)
    drafts: PlannedDrafts | None = None
    added: dict[int, AddedRequest] = field(default_factory=dict)
    is_refused: bool = False
    victims: list[TrackedRequest] | None = None
    num_preempted: int = 0
    num_recomputed: int = 0
    _blocks: list[tuple[Rows, Int32]] = field(default_factory=list)
    _table_slots: list[int] = field(default_factory=list)
    _table_blocks: list[int] = field(default_factory=list)

    def note_blocks(self, rows: Rows, blocks: Int32) -> None:
        """Blocks were appended, one to each of `rows` (a slot may stand there repeatedly)."""
        self._blocks.append((rows, blocks))

    def note_table(self, slot: int, blocks: list[int]) -> None:
        """Blocks were appended to one slot's table."""
        self._table_slots += [slot] * len(blocks)
        self._table_blocks += blocks

    def has_rows(self) -> bool:
        """Whether the step would compute anything."""
        if self.chunks or self.decodes is None:
            return bool(self.chunks)
        gone = self.dropped | self.skipped
        rows = self.decodes.slots
        return len(rows) > len(gone) or any(slot not in gone for slot in rows.tolist())

    def skip(self, slot: int) -> None:
        """A decode waits for blocks that are coming."""
        self.skipped.add(slot)
        self.lanes.refund(1)

    def drop(self, slot: int) -> None:
        """Take everything back that concerns a slot; refunds its tokens."""
        self.dropped.add(slot)
        self.added.pop(slot, None)
        refund = self.chunks.pop(slot, 0)
        if self.decodes is not None and slot in self.decodes.slots and slot not in self.skipped:
            refund += 1
        self.lanes.refund(refund)

    def build(self, slots: Slots, removed: list[int]) -> StepPlan | None:
        """The plan, None if it has no row. Advances C and P of its rows."""
        decodes, drafts = self.decodes, None
        if decodes is not None:
            kept = slots.all_true[: len(decodes.slots)]
            if self.dropped or self.skipped:
                kept = ~np.isin(decodes.slots, _int32(self.dropped | self.skipped))
                decodes = RowTemplate.of(decodes.slots[kept], slots)
            drafts = None if self.drafts is None else self.drafts.flat(kept)
        if decodes is None or not len(decodes.slots):
            if not self.chunks:
                return None
            decodes = RowTemplate.of(_int32(), slots)
        rows, at = decodes.slots, decodes.at
        num_tokens, samples = decodes.ones, decodes.samples
        num_drafts, epochs, request_ids = decodes.zeros, decodes.epochs, decodes.request_ids
        draft_tokens = _int32()
        if drafts is not None:
            num_drafts, draft_tokens = drafts
            num_tokens = num_tokens + num_drafts
            slots.drafts_in_flight[at] = num_drafts
        if self.chunks:
            more = np.array(list(self.chunks), dtype=np.intp)
            count = _int32(self.chunks.values())
            reached = slots.computed[more] + count >= slots.total[more] + slots.in_flight[more]
            yields = reached & (slots.total[more] < slots.limit[more])
            at = np.concatenate((at, more))
            rows = at.astype(np.int32)
            num_tokens = np.concatenate((num_tokens, count))
            samples = np.concatenate((samples, yields))
            if drafts is None:
                num_drafts = slots.zeros[: len(rows)]
            else:
                num_drafts = np.concatenate((num_drafts, slots.zeros[: len(more)]))
            epochs, request_ids = slots.epoch[at], slots.request_id[at]
        starts = slots.computed[at]
        slots.computed[at] = starts + num_tokens
        slots.in_flight[at] += samples
        slots.last_step[at] = self.step_id
        block_slots, block_ids = self._block_arrays()
        return StepPlan(
            step_id=self.step_id,
            removed_slots=_int32(dict.fromkeys(removed)),
            added=tuple(self.added.values()),
            block_slots=block_slots,
            block_groups=np.full(len(block_slots), FULL, dtype=np.int32),
            block_ids=block_ids,
            slots=rows,
            starts=starts,
            num_tokens=num_tokens,
            num_drafts=num_drafts,
            draft_tokens=draft_tokens,
            samples=samples,
            epochs=epochs,
            request_ids=request_ids,
        )

    def _block_arrays(self) -> tuple[Int32, Int32]:
        parts = [(rows.astype(np.int32), blocks) for rows, blocks in self._blocks]
        if self._table_slots:
            # Whole tables come first: a slot that was announced may get another block behind it.
            parts = [(_int32(self._table_slots), _int32(self._table_blocks)), *parts]
        if not parts:
            return _int32(), _int32()
        if len(parts) == 1:
            rows, blocks = parts[0]
        else:
            rows = np.concatenate([rows for rows, _ in parts])
            blocks = np.concatenate([blocks for _, blocks in parts])
        if self.dropped:
            keep = ~np.isin(rows, _int32(self.dropped))
            rows, blocks = rows[keep], blocks[keep]
        return rows, blocks

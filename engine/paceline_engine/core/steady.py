"""Decodes that go on together: the step in which nobody comes, goes or runs out.

While membership stays the same every row gains one token a step, so almost everything is known in
advance: positions are `first + steps`, the rows that reach a block boundary are one of `block_size`
fixed sets, the next length limit is so many steps away, and all gaps between tokens are equal. A
step then touches the slots' arrays for the rows at a boundary alone; the others are written when
somebody else wants to read them (`settle`).
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core.draft_plan import RowTemplate
from paceline_engine.core.plan import StepOutputs, StepPlan, StepResult
from paceline_engine.core.prefix_cache import HashChain
from paceline_engine.core.slots import FULL, Int32, Slots

Indices = NDArray[np.intp]

if TYPE_CHECKING:
    from paceline_engine.core.state import SchedulerState

_EMPTY = np.empty(0, dtype=np.int32)
_LOG_BLOCKS = 4


class _Phase:
    """Rows that reach block boundaries in the same steps. Mutable: it counts their blocks.

    Tables are written through an index into all of them: an index of one dimension is many times
    cheaper than one of three.
    """

    __slots__ = ("_entries", "_ones", "_tables", "blocks", "chains", "end", "indices", "slots")

    def __init__(self, rows: Int32, end: int, computed: Int32, slots: Slots) -> None:
        self.end = end  # behind them in the order of phases
        self.slots = rows
        self.chains: list[HashChain] = [slots.at(slot).chain for slot in rows.tolist()]
        current = (computed - 1) // slots.block_size
        self.indices: list[int] = current.tolist()  # table entry each is filling; -1 before any
        self._tables = slots.tables[FULL].reshape(-1)
        self._entries: Indices = rows.astype(np.intp) * slots.tables.shape[2] + current
        self._ones = np.ones_like(self._entries)
        self.blocks: list[int] = self._tables[self._entries].tolist()

    def append(self, blocks: list[int]) -> Int32:
        """Each row goes on in another block; their ids as an array."""
        self.blocks = blocks
        self.indices = [index + 1 for index in self.indices]
        self._entries += self._ones
        ids = np.array(blocks, dtype=np.int32)
        self._tables[self._entries] = ids
        return ids


class SteadyBatch:
    """Running decodes in lockstep. Mutable; valid until somebody takes or leaves a slot.

    Made when every running request wants exactly one token, nothing is in flight, and each owns
    just the blocks of its computed tokens.

    Attributes:
        template: the rows.
        num_planned, num_applied: steps since it was made; they differ by at most one.
        last_step: the newest of them.
    """

    def __init__(self, slots: Slots, template: RowTemplate) -> None:
        rows, size = template.slots, slots.block_size
        self.template = template
        self.num_planned = self.num_applied = 0
        self.last_step = -1
        self._slots, self._size = slots, size
        self._starts: Int32 = slots.computed[rows]  # C of each row before its next step
        self._first = self._starts  # the same when the batch was made; never written to
        self._first_sum = int(np.add.reduce(self._first))
        self._room = int((slots.limit[rows] - slots.total[rows]).min())
        phase = self._first % size
        order: Indices = np.argsort(phase, kind="stable")
        self._order = order
        self._ends: list[int] = np.searchsorted(phase[order], np.arange(size + 1)).tolist()
        self._phases: list[_Phase | None] = [None] * size  # made when their turn comes
        # The newest known tokens, a row per step, in the order of phases: what a phase has filled
        # is one rectangle. It begins with those before this batch, so it holds the last `size` at
        # any moment; tokens from row `_written` on are not yet in the slots' array.
        self._log = np.empty(((1 + _LOG_BLOCKS) * size, len(rows)), dtype=np.int32)
        self._tokens = slots.tokens.reshape(-1)
        self._ends_at: Indices = rows[order].astype(np.intp) * slots.tokens.shape[1]
        self._ends_at += self._starts[order] + 1  # where the next token of each belongs
        self._log[:size] = self._tokens[np.maximum(self._ends_at + np.arange(-size, 0)[:, None], 0)]
        self._row = self._written = size
        self._is_settled = True

    @staticmethod
    def fits(slots: Slots, template: RowTemplate) -> bool:
        """Whether these rows may go on in lockstep."""
        rows = template.slots
        if not len(rows):
            return False
        missing = slots.owned[rows] - slots.computed[rows]
        return bool(((missing >= 0) & (missing < slots.block_size)).all())

    def num_blocks_wanted(self) -> int:
        """Blocks that the next step needs."""
        at = -self.num_planned % self._size
        return self._ends[at + 1] - self._ends[at]

    def plan(self, state: "SchedulerState", step_id: int) -> StepPlan:
        """Plan the next step; its blocks can be allocated."""
        template = self.template
        starts = self._starts
        self._starts = starts + template.ones  # of the same type: cheaper than a number
        block_slots = block_ids = groups = _EMPTY
        at = -self.num_planned % self._size
        if self._ends[at] < self._ends[at + 1]:
            phase = self._phase(at)
            block_slots = phase.slots
            block_ids = phase.append(state.pool.allocate(len(block_slots)))
            groups = template.zeros[: len(block_slots)]
        self.num_planned += 1
        self.last_step = step_id
        self._is_settled = False
        return StepPlan(
            step_id=step_id,
            removed_slots=_EMPTY,
            block_slots=block_slots,
            block_groups=groups,
            block_ids=block_ids,
            slots=template.slots,
            starts=starts,
            num_tokens=template.ones,
            num_drafts=template.zeros,
            draft_tokens=_EMPTY,
            samples=template.samples,
            epochs=template.epochs,
            request_ids=template.request_ids,
        )

    @property
    def kv_tokens_read(self) -> int:
        """Tokens whose keys and values the newest applied step read, over all rows."""
        return self._first_sum + self.num_applied * len(self._first)

    def can_apply(self, state: "SchedulerState", result: StepResult) -> bool:
        """Nothing but one more token for everybody: nobody ends, nothing failed."""
        if result.errors or result.prompt_logprobs or self.num_applied + 1 >= self._room:
            return False
        return not state.stops.may_stop(self.template.slots, result.tokens)

    def apply(self, state: "SchedulerState", result: StepResult) -> StepOutputs:
        """Take the step's tokens; names the blocks that it filled."""
        filled = -(self.num_applied + 1) % self._size
        if self._ends[filled] < self._ends[filled + 1] and state.cache.enabled:
            self._name(state, self._phase(filled))
        if self._row == len(self._log):
            self._write()
            self._log[: self._size] = self._log[-self._size :]
            self._row = self._written = self._size
        self._log[self._row] = result.tokens[:, 0][self._order]
        self._row += 1
        self.num_applied += 1
        self._is_settled = False
        outputs = StepOutputs(
            step_id=result.step_id,
            request_ids=self.template.request_ids,
            tokens=result.tokens,
        )
        if result.logprobs:
            ids = self.template.request_ids
            outputs.logprobs = {int(ids[row]): entries for row, entries in result.logprobs.items()}
        return outputs

    def settle(self) -> None:
        """Write what the rows have become into the slots' arrays."""
        if self._is_settled:
            return
        self._is_settled = True
        slots, rows = self._slots, self.template.slots
        computed = self._first + self.num_planned
        slots.computed[rows] = computed
        slots.total[rows] = self._first + (1 + self.num_applied)
        slots.in_flight[rows] = self.num_planned - self.num_applied
        slots.last_step[rows] = self.last_step
        slots.set_num_blocks(rows, -(-computed // self._size))
        self._write()

    def _phase(self, index: int) -> _Phase:
        phase = self._phases[index]
        if phase is None:
            start, end = self._ends[index], self._ends[index + 1]
            at = self._order[start:end]
            phase = _Phase(self.template.slots[at], end, self._first[at], self._slots)
            self._phases[index] = phase
        return phase

    def _name(self, state: "SchedulerState", phase: _Phase) -> None:
        """The last input of these rows filled a block."""
        start, end = phase.end - len(phase.slots), phase.end
        windows = self._log[self._row - self._size : self._row, start:end].T
        state.cache.insert_last(phase.chains, phase.indices, phase.blocks, windows)

    def _write(self) -> None:
        """Write the tokens that the slots' array lacks."""
        count = self._row - self._written
        if count:
            at = self._ends_at + np.arange(count)[:, None]
            self._tokens[at] = self._log[self._written : self._row]
            self._ends_at += count
            self._written = self._row

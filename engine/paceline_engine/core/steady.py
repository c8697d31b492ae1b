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
_LOG_BLOCKS = 8


class _Phase:
    """Rows that reach block boundaries in the same steps. Mutable: it counts their blocks."""

    __slots__ = ("at", "blocks", "chains", "current", "slots")

    def __init__(self, at: Indices, rows: Int32, current: Int32, slots: Slots) -> None:
        self.at = at  # indices into the batch
        self.slots = rows
        self.current = current  # table entry that each is filling; -1 before the first
        self.chains: list[HashChain] = [slots.at(slot).chain for slot in rows.tolist()]
        self.blocks: list[int] = slots.tables[FULL, rows, current].tolist()


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
        # Tokens of the last steps, the newest in column `_column` - 1; the last `size` of them are
        # moved to the front when it is full, so they are one slice at any moment.
        self._log = np.zeros((len(rows), _LOG_BLOCKS * size), dtype=np.int32)
        self._column = 0
        phase = self._first % size
        order = np.argsort(phase, kind="stable")
        ends = np.searchsorted(phase[order], np.arange(size + 1)).tolist()
        self._order = order
        self._ends: list[int] = ends
        self._phases: list[_Phase | None] = [None] * size  # made when their turn comes
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
        self._starts = starts + 1
        block_slots = block_ids = groups = _EMPTY
        at = -self.num_planned % self._size
        if self._ends[at] < self._ends[at + 1]:
            phase = self._phase(at)
            block_slots = phase.slots
            phase.blocks = state.pool.allocate(len(block_slots))
            block_ids = np.array(phase.blocks, dtype=np.int32)
            groups = template.zeros[: len(block_slots)]
            phase.current += 1
            self._slots.tables[FULL, block_slots, phase.current] = block_ids
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
        if self._ends[filled] < self._ends[filled + 1]:
            self._fill(state, self._phase(filled))
        if self._column == self._log.shape[1]:
            self._log[:, : self._size] = self._log[:, -self._size :]
            self._column = self._size
        self._log[:, self._column] = result.tokens[:, 0]
        self._column += 1
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
        self._write_newest(slice(None))

    def _phase(self, index: int) -> _Phase:
        phase = self._phases[index]
        if phase is None:
            at = self._order[self._ends[index] : self._ends[index + 1]]
            rows = self.template.slots[at]
            current = (self._first[at] - 1) // self._size
            phase = self._phases[index] = _Phase(at, rows, current, self._slots)
        return phase

    def _fill(self, state: "SchedulerState", phase: _Phase) -> None:
        """The last input of these rows filled a block."""
        slots, rows, size = self._slots, phase.slots, self._size
        by_block = slots.tokens_by_block
        if self.num_applied >= size:
            windows = self._log[phase.at, self._column - size : self._column]
            by_block[rows, phase.current] = windows
        else:  # the first part of the block is older than this batch
            self._write_newest(phase.at)
            windows = by_block[rows, phase.current]
        if state.cache.enabled:
            index = phase.current.tolist()
            state.cache.insert_last(phase.chains, index, phase.blocks, windows)

    def _write_newest(self, at: Indices | slice) -> None:
        """Write the newest outputs of rows; those of full blocks are written already."""
        count = min(self.num_applied, self._size)
        steps = np.arange(self.num_applied - count, self.num_applied)
        positions = self._first[at][:, None] + (1 + steps)
        rows = self.template.slots[at]
        newest = self._log[at, self._column - count : self._column]
        self._slots.tokens[rows[:, None], positions] = newest

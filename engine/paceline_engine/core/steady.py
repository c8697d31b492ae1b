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


class _Phase:
    """Rows that reach block boundaries in the same steps. Mutable: it counts their blocks."""

    __slots__ = ("at", "chains", "current", "slots")

    def __init__(self, at: Indices, slots: Int32, current: Int32, chains: list[HashChain]) -> None:
        self.at = at  # indices into the batch
        self.slots = slots
        self.current = current  # table entry that each is filling
        self.chains = chains


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
        self._room = int((slots.limit[rows] - slots.total[rows]).min())
        # Tokens of the last `size` steps, twice side by side, so that they are one slice at any
        # moment: step s stands in columns s % size and s % size + size.
        self._ring = np.zeros((len(rows), 2 * size), dtype=np.int32)
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
        if self.num_blocks_wanted():
            phase = self._phase(-self.num_planned % self._size)
            block_slots = phase.slots
            block_ids = state.pool.allocate_many_one(len(block_slots))
            groups = template.zeros[: len(block_slots)]
            phase.current += 1
            self._slots.tables[FULL, block_slots, phase.current] = block_ids
        self.num_planned += 1
        self.last_step = step_id
        self._is_settled = False
        return StepPlan(
            step_id=step_id,
            block_slots=block_slots,
            block_groups=groups,
            block_ids=block_ids,
            slots=template.slots,
            starts=starts,
            num_tokens=template.ones,
            num_drafts=template.zeros,
            samples=template.samples,
            epochs=template.epochs,
            request_ids=template.request_ids,
        )

    def can_apply(self, state: "SchedulerState", result: StepResult) -> bool:
        """Nothing but one more token for everybody: nobody ends, nothing failed."""
        if result.errors or result.prompt_logprobs or self.num_applied + 1 >= self._room:
            return False
        return not state.stops.may_stop(self.template.slots, result.tokens)

    def apply(self, state: "SchedulerState", result: StepResult) -> StepOutputs:
        """Take the step's tokens; names the blocks that it filled."""
        column = self.num_applied % self._size
        filled = -(self.num_applied + 1) % self._size
        if self._ends[filled] < self._ends[filled + 1]:
            self._fill(state, self._phase(filled), column)
        tokens = result.tokens[:, 0]
        self._ring[:, column] = tokens
        self._ring[:, column + self._size] = tokens
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
        blocks = -(-computed // self._size)
        slots.num_blocks[FULL, rows] = blocks
        slots.owned[rows] = blocks * self._size
        self._write_newest(slice(None))

    def _phase(self, index: int) -> _Phase:
        phase = self._phases[index]
        if phase is None:
            at = self._order[self._ends[index] : self._ends[index + 1]]
            slots = self.template.slots[at]
            current = (self._first[at] - 1) // self._size
            chains = [self._slots.at(slot).chain for slot in slots.tolist()]
            phase = self._phases[index] = _Phase(at, slots, current, chains)
        return phase

    def _fill(self, state: "SchedulerState", phase: _Phase, column: int) -> None:
        """The last input of these rows filled a block; the ring starts at `column`."""
        slots, rows, size = self._slots, phase.slots, self._size
        by_block = slots.tokens_by_block
        if self.num_applied >= size:
            windows = self._ring[phase.at, column : column + size]
            by_block[rows, phase.current] = windows
        else:  # the first part of the block is older than this batch
            self._write_newest(phase.at)
            windows = by_block[rows, phase.current]
        if state.cache.enabled:
            blocks = slots.tables[FULL, rows, phase.current].tolist()
            state.cache.insert_last(phase.chains, phase.current.tolist(), blocks, windows)

    def _write_newest(self, at: Indices | slice) -> None:
        """Write the newest outputs of rows; those of full blocks are written already."""
        oldest = max(0, self.num_applied - self._size)
        steps = np.arange(oldest, self.num_applied)
        positions = self._first[at][:, None] + (1 + steps)
        rows = self.template.slots[at]
        self._slots.tokens[rows[:, None], positions] = self._ring[at][:, steps % self._size]

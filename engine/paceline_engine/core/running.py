"""Rows of running requests: one token for each decode, then chunks of prompts.

Decodes are planned with a handful of numpy calls for all of them; Python runs only for those at a
block boundary when blocks are short. Blocks are taken before a row is planned.
"""

import numpy as np

from paceline_engine.core.draft_plan import DraftPlan, RowTemplate
from paceline_engine.core.preemption import Room, make_room, preempt
from paceline_engine.core.slots import Rows
from paceline_engine.core.state import SchedulerState
from paceline_engine.core.tracked import TrackedRequest


def decode_rows(state: SchedulerState) -> RowTemplate:
    """Running requests that want one token, in the order of their admission."""
    if state.template is None:
        slots = state.slots
        slots.compact()
        order = slots.order
        rows = order[~slots.is_prefilling[order]] if state.prefilling else order
        state.template = RowTemplate.of(rows, slots)
    return state.template


def plan_decodes(state: SchedulerState, draft: DraftPlan) -> None:
    """One token for each decode; a rotating start if the budget is smaller than their number."""
    slots = state.slots
    template = decode_rows(state)
    rows = template.at
    if state.in_flight:
        going_on = slots.computed[rows] < slots.compute_end[rows]
        going_on &= slots.drafts_in_flight[rows] == 0  # where such a row goes on is not known yet
        if not going_on.all():
            rows = rows[going_on]
            template = RowTemplate.of(rows, slots)
    budget = draft.lanes.total
    if len(rows) > budget:
        start = state.rotation % len(rows)
        rows = np.roll(rows, -start)
        if state.fair is not None:
            rows = state.fair.by_need(rows)
        rows = rows[:budget]
        state.rotation = start + budget
        template = RowTemplate.of(rows, slots)
    draft.decodes = template
    draft.lanes.total -= len(rows)
    at_boundary = slots.computed[rows] >= slots.owned[rows]
    wanted = int(np.count_nonzero(at_boundary))
    if not wanted:
        return
    takers = rows[at_boundary]
    if wanted <= state.pool.num_free:
        _give(state, draft, takers)
    else:
        _give_while_short(state, draft, takers)


def _give(state: SchedulerState, draft: DraftPlan, takers: Rows) -> None:
    blocks = state.pool.allocate_many_one(len(takers))
    state.slots.append_one_each(takers, blocks)
    draft.note_blocks(takers, blocks)


def _give_while_short(state: SchedulerState, draft: DraftPlan, takers: Rows) -> None:
    """Best request first, so that nobody takes what a better one was refused."""
    asking = sorted((state.slots.at(slot) for slot in takers.tolist()), key=state.rank)
    for tracked in asking:
        if tracked.slot < 0:
            continue
        if draft.is_refused:
            draft.skip(tracked.slot)
            continue
        room = make_room(state, draft, tracked, 1)
        if room is Room.MADE:
            _give(state, draft, np.array([tracked.slot], dtype=np.intp))
            continue
        draft.is_refused = True
        if room is Room.NONE:
            preempt(state, draft, tracked, 0)
        else:
            draft.skip(tracked.slot)


def plan_chunks(state: SchedulerState, draft: DraftPlan) -> None:
    """Chunks of running requests that still prefill, in the order of the policy."""
    for tracked in sorted(state.prefilling.values(), key=state.turn):
        if draft.lanes.total <= 0:
            return
        if tracked.slot >= 0 and tracked.slot not in draft.chunks:
            _plan_chunk(state, draft, tracked)


def _plan_chunk(state: SchedulerState, draft: DraftPlan, tracked: TrackedRequest) -> None:
    slots, slot, pool = state.slots, tracked.slot, state.pool
    computed, owned = int(slots.computed[slot]), int(slots.owned[slot])
    wanted = int(slots.total[slot]) - computed
    n = draft.lanes.room(wanted)
    if state.fair is not None:
        n = min(n, state.fair.chunk_room(tracked))
    if n <= 0:
        return
    missing = -(-(computed + n - owned) // state.limits.block_size)
    if missing > 0:
        room = Room.COMING if draft.is_refused else make_room(state, draft, tracked, missing)
        if room is Room.NONE:
            n = min(n, owned + pool.num_free * state.limits.block_size - computed)
        elif room is Room.COMING:
            n = min(n, owned - computed)
        if room is not Room.MADE:
            draft.is_refused = True
        if n <= 0:
            if room is Room.NONE:
                preempt(state, draft, tracked, 0)
            return
    add_chunk(state, draft, tracked, n)


def add_chunk(state: SchedulerState, draft: DraftPlan, tracked: TrackedRequest, n: int) -> None:
    """Plan `n` known tokens of a seated request; the blocks they need can be allocated.

    Full blocks of the chunk are named at once (pending), so that requests with the same prefix
    compute it once, even in the same step.
    """
    slots, slot, size = state.slots, tracked.slot, state.limits.block_size
    computed = int(slots.computed[slot])
    end = computed + n
    missing = -(-(end - int(slots.owned[slot])) // size)
    if missing > 0:
        blocks = state.pool.allocate(missing)
        slots.append_blocks(slot, blocks)
        draft.note_table(slot, blocks)
    filled = slots.blocks(slot)[computed // size : end // size].tolist()
    note_chunk(state, draft, tracked, computed, n, total=int(slots.total[slot]), filled=filled)


def note_chunk(
    state: SchedulerState,
    draft: DraftPlan,
    tracked: TrackedRequest,
    start: int,
    n: int,
    *,
    total: int,
    filled: list[int],
) -> None:
    """Put the known tokens [start, start + n) of a seated request into the plan.

    Args:
        state: mutated.
        draft: the step being planned.
        tracked: it has the blocks for them.
        start: its computed tokens.
        n: how many.
        total: its known tokens.
        filled: the blocks that become full.
    """
    lanes = draft.lanes
    draft.chunks[tracked.slot] = n
    lanes.take(n, is_long=lanes.is_long(total - start))
    if state.fair is not None:
        state.fair.computes(tracked, start, n)
    if filled and state.cache.enabled:
        first, size = start // state.limits.block_size, state.limits.block_size
        last = first + len(filled)
        if len(tracked.chain.keys) < last:
            state.cache.extend(tracked.chain, state.slots.tokens[tracked.slot, : last * size])
        state.cache.insert(tracked.chain, first, filled, step_id=draft.step_id)

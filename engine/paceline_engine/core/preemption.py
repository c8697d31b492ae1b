"""Who loses its blocks when a running request cannot get one.

The order is the policy's: under Fcfs the tail of the running requests, under Priority the worst
level, then the youngest. A victim whose blocks are all shared frees nothing and is left alone.
"""

from enum import Enum, auto

from paceline_engine.core.draft_plan import DraftPlan
from paceline_engine.core.state import SchedulerState
from paceline_engine.core.tracked import TrackedRequest


class Room(Enum):
    """What came of asking for blocks."""

    MADE = auto()
    COMING = auto()
    """Steps in flight hold enough: wait for them instead of preempting more."""
    NONE = auto()
    """Nobody worse is left: the one who asked is the next victim."""


def make_room(
    state: SchedulerState, draft: DraftPlan, requester: TrackedRequest, num_blocks: int
) -> Room:
    """Preempt worse requests until `num_blocks` can be allocated.

    Rows that victims already have in this step are undone and their budget is refunded.
    """
    pool = state.pool
    while pool.num_free < num_blocks:
        if pool.num_free + pool.num_held >= num_blocks:
            return Room.COMING
        victim = _worst(state, draft, requester)
        if victim is None:
            return Room.NONE
        state.preempt(victim, draft)
    return Room.MADE


def _worst(
    state: SchedulerState, draft: DraftPlan, requester: TrackedRequest
) -> TrackedRequest | None:
    if draft.victims is None:
        seated = [tracked for tracked in state.slots.tracked if tracked is not None]
        draft.victims = sorted(seated, key=lambda tracked: tracked.key)
    spared: list[TrackedRequest] = []
    found = None
    while draft.victims and draft.victims[-1].key > requester.key:
        candidate = draft.victims.pop()
        if candidate.slot < 0:
            continue
        frees = state.pool.num_gained(state.slots.blocks(candidate.slot).tolist())
        if frees and not state.cache.is_relied_on(draft.step_id, candidate.request_id):
            found = candidate
            break
        spared.append(candidate)
    # A victim of now may free what another one shares, so the spared ones stay candidates.
    draft.victims.extend(reversed(spared))
    return found

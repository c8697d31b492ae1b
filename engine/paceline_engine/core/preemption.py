"""Who loses which blocks when a running request cannot get one, or a waiting one cannot start.

A request that is preempted keeps its full blocks but for as many at its tail as are needed, and
waits with them. When blocks are short again these kept ones go first: the worst request's, tail
first. Only then a running one loses its slot: of those that are worse than who asks, the one whose
loss costs the fewest tokens to compute again. Blocks that others use, too, are no gain.

Nobody waits for ever: the order of the policy is fixed (a request keeps its place through
preemptions), only worse ones lose to better ones, so the best request always gets on.
"""

from enum import Enum, auto

from paceline_engine.core.draft_plan import DraftPlan
from paceline_engine.core.state import SchedulerState
from paceline_engine.core.tracked import OrderKey, TrackedRequest

MAX_PREEMPTIONS = 3
"""Who was preempted so often is a victim again only if everybody worse was."""
HORIZON_BLOCKS = 8
"""For so many blocks victims are compared: more are going to be needed soon."""


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
    """Take blocks from worse requests until `num_blocks` can be allocated.

    Rows that victims already have in this step are undone and their budget is refunded.
    """
    pool = state.pool
    while pool.num_free < num_blocks:
        missing = num_blocks - pool.num_free - pool.num_held
        if missing <= 0:
            return Room.COMING
        if take_kept(state, state.rank(requester), missing):
            continue
        victim = _cheapest(state, draft, requester)
        if victim is None:
            return Room.NONE
        preempt(state, draft, victim, missing)
    return Room.MADE


def preempt(
    state: SchedulerState, draft: DraftPlan, victim: TrackedRequest, num_wanted: int
) -> None:
    """Take a running request's slot and, from its tail, as many blocks as are wanted.

    Args:
        state: mutated.
        draft: the step being planned; the victim's rows are undone.
        victim: waits afterwards, with what it keeps.
        num_wanted: blocks that others need; 0 = it only cannot go on itself.
    """
    num_kept = 0
    if not state.gives_all_back:
        blocks = state.slots.blocks(victim.slot).tolist()
        num_kept = _num_left(state, blocks, _most_kept(state, victim), num_wanted)
    state.preempt(victim, draft, num_kept)


def _most_kept(state: SchedulerState, running: TrackedRequest) -> int:
    """Full blocks of computed tokens, of which at least one is left to compute."""
    slots, slot = state.slots, running.slot
    most = running.max_hits(int(slots.total[slot])) - 1
    return max(0, min(int(slots.computed[slot]), most)) // slots.block_size


def take_kept(
    state: SchedulerState,
    key: OrderKey,
    num_wanted: int,
    *,
    spared: TrackedRequest | None = None,
) -> bool:
    """Take blocks that waiting requests kept, from those worse than `key` but for `spared`.

    Returns:
        Whether a block was taken: it is free now, or held by a step in flight.
    """
    for keeper in sorted(state.keepers.values(), key=state.rank, reverse=True):
        if state.rank(keeper) <= key:
            return False
        gain = state.pool.num_gained(keeper.kept)
        if gain and keeper is not spared:
            left = _num_left(state, keeper.kept, len(keeper.kept), min(gain, num_wanted))
            state.drop_kept(keeper, left)
            return True
    return False


def _num_left(state: SchedulerState, blocks: list[int], most: int, num_wanted: int) -> int:
    """How many of the first `most` of a request's blocks it may keep while it gives some back."""
    is_gain = state.pool.num_gained
    missing = num_wanted - is_gain(blocks[most:])
    left = most
    while left and missing > 0:
        left -= 1
        missing -= is_gain(blocks[left : left + 1])
    return left


def _cheapest(
    state: SchedulerState, draft: DraftPlan, requester: TrackedRequest
) -> TrackedRequest | None:
    """The running request that is worse than who asks and loses least; it frees something."""
    if draft.victims is None:
        draft.victims = _by_cost(state)
    spared: list[TrackedRequest] = []
    found = None
    victims = iter(draft.victims)
    for candidate in victims:
        if candidate.slot < 0:
            continue
        blocks = state.slots.blocks(candidate.slot).tolist()
        if (
            state.rank(candidate) > state.rank(requester)
            and state.pool.num_gained(blocks)
            and not state.cache.is_relied_on(draft.step_id, candidate.request_id)
        ):
            found = candidate
            break
        spared.append(candidate)
    draft.victims = [*spared, *victims]
    return found


def _by_cost(state: SchedulerState) -> list[TrackedRequest]:
    """Running requests, cheapest to preempt first; the worst of those that cost about the same.

    The cost is that of several blocks, since more will be needed: what the victim keeps goes next,
    and what the worst request keeps is open to everybody.
    """
    slots = state.slots
    seated = [tracked for tracked in slots.tracked if tracked is not None]
    seated.sort(key=state.rank, reverse=True)
    if state.gives_all_back:
        return seated
    return sorted(
        seated,
        key=lambda tracked: (
            tracked.num_preemptions >= MAX_PREEMPTIONS,
            _cost(state, tracked),
        ),
    )


def _cost(state: SchedulerState, tracked: TrackedRequest) -> int:
    """Tokens to compute again for each block that comes free, in quarters of a block."""
    slots, size = state.slots, state.limits.block_size
    blocks = slots.blocks(tracked.slot).tolist()
    most = _most_kept(state, tracked)
    left = _num_left(state, blocks, most, HORIZON_BLOCKS)
    gain = state.pool.num_gained(blocks[left:])
    if not gain:
        return 0
    # What others use, too, stays where it is and is found again.
    found = (most - left) - state.pool.num_gained(blocks[left:most])
    lost = int(slots.computed[tracked.slot]) - (left + found) * size
    return 4 * lost // (gain * size)

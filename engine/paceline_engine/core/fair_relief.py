"""When a tenant that got less waits and no seat comes free, one that got more gives up a seat.

Only then: tenants get their parts by order alone as long as requests end. Who gives a seat up keeps
its blocks, so hardly anything is computed twice, unless it is for blocks that the other one waits.
The exchange brings running requests nearer to the weights and never past them, so no two tenants
take a seat from each other in turns.
"""

from dataclasses import dataclass

from paceline_engine.core.accounts import Account
from paceline_engine.core.draft_plan import DraftPlan
from paceline_engine.core.fair import FairBook
from paceline_engine.core.lanes import LaneBudget
from paceline_engine.core.preemption import MAX_PREEMPTIONS, preempt
from paceline_engine.core.state import SchedulerState
from paceline_engine.core.tracked import TrackedRequest, WaitReason


@dataclass(frozen=True, slots=True)
class Swap:
    """Who gives up its seat, and how many of its blocks."""

    victim: TrackedRequest
    num_blocks: int


def due(state: SchedulerState) -> Swap | None:
    """Look, every few steps while somebody waits, whether a seat has to change hands."""
    book = state.fair
    if book is None:
        return None
    book.step = state.next_step_id
    if not state.queue or not book.is_check_due:
        return None
    state.settle()
    book.settle(state.slots)
    swap = _swap(state, book)
    book.checked(has_found=swap is not None)
    return swap


def yield_seat(state: SchedulerState, swap: Swap) -> int:
    """Preempt the victim, before the next step has any row; returns how many were."""
    state.recorder.seat_given_up(swap.victim.request_id)
    unplanned = DraftPlan(state.next_step_id, LaneBudget(0, 0, 0, 0))
    preempt(state, unplanned, swap.victim, swap.num_blocks)
    return 1


def _swap(state: SchedulerState, book: FairBook) -> Swap | None:
    needy = book.neediest()
    if needy is None:
        return None
    first = state.queue.best_of(needy.index)
    lacks_blocks = first.wait_reason is WaitReason.KV_BLOCKS
    if state.num_free_seats > 0 and not lacks_blocks:
        return None
    giver = book.richest(needy)
    if giver is None:
        return None
    victim = _victim(state, giver)
    if victim is None:
        return None
    return Swap(victim, _num_missing(state, first) if lacks_blocks else 0)


def _victim(state: SchedulerState, giver: Account) -> TrackedRequest | None:
    """The tenant's newest running request, of those that were not preempted too often."""
    running = [t for t in state.slots.tracked if t is not None and t.account is giver]
    return max(
        running,
        key=lambda tracked: (tracked.num_preemptions < MAX_PREEMPTIONS, tracked.seat_no),
        default=None,
    )


def _num_missing(state: SchedulerState, first: TrackedRequest) -> int:
    """Blocks that a waiting request's prompt needs beyond those that are free."""
    wanted = -(-first.num_waiting_tokens // state.limits.block_size) - len(first.kept)
    return max(0, wanted + state.reserve_blocks - state.pool.num_free - state.pool.num_held)

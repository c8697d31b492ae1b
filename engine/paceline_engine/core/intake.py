"""Admission: the walk over the waiting queue that ends a plan."""

import math

from paceline_crds.settings import Batching
from paceline_engine.core import admission
from paceline_engine.core.admission import MAX_LOOKS, MAX_PASSES, QueueLoad
from paceline_engine.core.block_pool import NULL_BLOCK
from paceline_engine.core.draft_plan import DraftPlan
from paceline_engine.core.preemption import take_kept
from paceline_engine.core.request import Refusal
from paceline_engine.core.running import note_chunk
from paceline_engine.core.state import SchedulerState
from paceline_engine.core.tracked import TrackedRequest, WaitReason

_RETRY_STEPS = 32
"""Without an event the walk is repeated only so often: the brake and forecasts move slowly."""


def is_open(state: SchedulerState, step_id: int) -> bool:
    """Whether anybody may be admitted in this step at all.

    A static batch takes nobody once it has been filled.
    """
    if not len(state.queue):
        return False
    if not state.slots.num_seated:
        state.is_batch_open = True
    elif state.settings.batching is Batching.STATIC and not state.is_batch_open:
        return False
    if state.num_free_seats <= 0:
        return False
    due = state.is_intake_due or step_id % _RETRY_STEPS == 0
    return due or not state.slots.num_seated


def refuse_when_full(
    state: SchedulerState, num_tokens: int, tenant: str, now: float
) -> Refusal | None:
    """Why a request that has to wait is not taken: the queue is full, or its tenant's part is."""
    queue, starters = state.queue, state.queue.starters
    load = QueueLoad(
        num_waiting=len(queue) - len(starters),
        num_waiting_tokens=queue.num_tokens - starters.num_tokens,
        max_requests=state.settings.queue_max_requests,
        max_tokens=state.settings.queue_max_tokens,
    )
    refusal = admission.refuse_when_full(load, num_tokens, state.drain, now)
    if refusal is None or state.fair is None:
        return refusal
    return admission.refuse_over_part(refusal, load, state.fair.queue_part(tenant), num_tokens)


def blocks_to_start(
    state: SchedulerState, num_tokens: int, limit: int, tenant: str = ""
) -> int | None:
    """What a request that arrives now takes at the next steps, which need not wait for anybody.

    Cheap rather than exact: the prefix cache is not asked, and a request behind one that waits is
    taken to wait too, though it may pass it.

    Args:
        state: is only read.
        num_tokens: of its prompt.
        limit: total tokens at which it ends.
        tenant: whose it is.

    Returns:
        KV blocks; None if it has to wait for a seat or for blocks.
    """
    starters, seated = state.queue.starters, state.slots.num_seated
    num_starters = len(starters)
    if num_starters < len(state.queue) or state.num_free_seats <= num_starters:
        return None
    if state.fair is not None and not state.fair.may_start(tenant):
        return None
    if seated and state.settings.batching is Batching.STATIC and not state.is_batch_open:
        return None
    wanted = -(-_final_tokens(state, num_tokens, num_tokens, limit) // state.limits.block_size)
    if not seated and not num_starters:
        return wanted  # alone: it is let in whatever the forecast says
    spare = state.pool.num_free - state.reserve_blocks - starters.num_blocks
    if wanted <= spare - state.slots.num_to_come:
        return wanted  # whatever becomes of those that run
    state.settle()
    return wanted if wanted <= spare - state.slots.promised_blocks(state.expected.tail) else None


def _final_tokens(state: SchedulerState, known: int, num_prompt: int, limit: int) -> int:
    """Tokens whose KV a request with `known` ones is expected to need before it ends."""
    to_come = state.expected.forecast(known - num_prompt, limit - num_prompt)
    return max(known, min(known + to_come, limit - 1))


def _find(state: SchedulerState, tracked: TrackedRequest) -> list[int]:
    """Entries behind those that a request kept that it need not compute.

    Returns:
        Blocks of the device, and `NULL_BLOCK` for each that would be loaded from the host.
    """
    cache = state.cache
    if not cache.enabled:
        return []
    cache.extend(tracked.chain, tracked.token_ids)
    known = cache if state.offload is None else state.offload
    return known.lookup(tracked.chain, tracked.max_hit_tokens, len(tracked.kept))


def wait_reason(state: SchedulerState, tracked: TrackedRequest) -> WaitReason:
    """Why a waiting request is not running."""
    if state.settings.batching is Batching.STATIC and state.slots.num_seated:
        if not state.is_batch_open:
            return WaitReason.STATIC_BATCH
    elif state.num_free_seats <= 0:
        return WaitReason.SEQUENCE_LIMIT
    if state.fair is not None and state.fair.is_kept_out(tracked):
        return WaitReason.TENANT_LIMIT
    return tracked.wait_reason


def admit(state: SchedulerState, draft: DraftPlan, now: float) -> None:
    """Give slots, blocks and first chunks to waiting requests, in the order of the policy.

    The first request that does not fit is the *head*: a bounded number of smaller ones may pass
    it, and only with blocks that were free when it was first refused; what comes free later is
    kept for it, so it is admitted in the end at the latest when nobody runs.
    """
    Walk(state, draft, now).run()


class Walk:
    """One pass over the queue. Mutable: it counts what it gives away."""

    def __init__(self, state: SchedulerState, draft: DraftPlan, now: float) -> None:
        self._state = state
        self._draft = draft
        self._now = now
        self._head: TrackedRequest | None = None
        self._promised = -1  # not counted: nobody has needed it
        self._reserve = state.reserve_blocks

    def run(self) -> None:
        """Walk until seats, budget, blocks or patience are used up."""
        state, lanes = self._state, self._draft.lanes
        walk = state.queue.walk()
        looks = 0
        out_of_budget = False
        is_braked = False
        num_seats = state.num_free_seats
        while num_seats > 0:
            has_room = lanes.has_room()
            tracked = walk.next(has_room)
            if False in has_room:
                out_of_budget = True
            if tracked is None:
                break
            if self._try(tracked):
                num_seats -= 1
                if state.brake.is_on:
                    is_braked = True
                    break
                continue
            if tracked.wait_reason is WaitReason.TOKEN_BUDGET:
                out_of_budget = True
            walk.skip()
            looks += 1
            head = self._head
            if looks > MAX_LOOKS or (head is not None and head.num_passed >= MAX_PASSES):
                break
        out_of_budget |= walk.is_short
        state.is_intake_due = out_of_budget or is_braked
        state.is_batch_open = out_of_budget
        is_left = self._head is not None or walk.leaves_out
        if is_braked or is_left or num_seats <= 0:
            state.queue.starters.clear()

    def _try(self, tracked: TrackedRequest) -> bool:
        """Admit one request if it fits; says why it waits otherwise."""
        state, size = self._state, self._state.limits.block_size
        known = len(tracked.token_ids)
        hits = _find(state, tracked)
        has = len(tracked.kept) + len(hits)
        owned = has - hits.count(NULL_BLOCK)  # what is loaded needs a block, too
        n = self._draft.lanes.room(known - has * size)
        if state.fair is not None:
            n = min(n, state.fair.admission_room(tracked))
        if n <= 0:
            tracked.wait_reason = WaitReason.TOKEN_BUDGET
            return False
        final = _final_tokens(state, known, tracked.num_prompt_tokens, tracked.limit)
        wanted = -(-final // size) - owned
        revived = state.pool.num_idle(hits) if hits else 0
        free = state.pool.num_free - revived
        room = free - self._reserve - state.slots.num_to_come
        if wanted > room:
            room = free - self._reserve - self._num_promised()
        chunk = -(-(has * size + n) // size) - owned
        is_alone = not state.slots.num_seated and not state.in_flight
        if not (chunk <= free and (is_alone or (wanted <= room and self._may_pass(wanted)))):
            missing = chunk - free if is_alone else max(chunk - free, wanted - room)
            if self._head is None and self._take_kept(tracked, missing):
                return self._try(tracked)  # some of what was taken may have been hits
            tracked.wait_reason = WaitReason.KV_BLOCKS
            if self._head is None:
                self._head = tracked
                if tracked.pass_blocks < 0:
                    tracked.pass_blocks = max(0, room)
            return False
        if self._head is not None:
            self._head.num_passed += 1
            self._head.pass_blocks -= wanted
        table = state.seat(
            tracked,
            hits,
            self._draft,
            self._now,
            num_new=chunk - (has - owned),
            num_promised=owned + wanted,
        )
        state.drain.admitted(known, self._now)
        start = has * size
        filled = table[has : (start + n) // size]
        note_chunk(state, self._draft, tracked, start, n, total=known, filled=filled)
        if self._promised >= 0:
            self._promised += wanted - chunk
        return True

    def _num_promised(self) -> int:
        """Blocks that running requests are expected to take, in place of the most they may."""
        if self._promised < 0:
            self._promised = self._state.slots.promised_blocks(self._state.expected.tail)
        return self._promised

    def _take_kept(self, tracked: TrackedRequest, num_wanted: int) -> bool:
        """Take blocks that preempted requests kept, for the head that does not fit.

        Those of a worse level at any time; those of its own level only if nobody runs, since to
        wait for running ones costs nothing that was computed.
        """
        state, key = self._state, self._state.rank(tracked)
        if state.slots.num_seated or state.in_flight:
            key = (key[0], math.inf)
        elif state.fair is not None:
            key = (-math.inf,)  # who is next need not be the best of its quantum
        num_wanted -= state.pool.num_held  # they come by themselves
        return num_wanted > 0 and take_kept(state, key, num_wanted, spared=tracked)

    def _may_pass(self, wanted: int) -> bool:
        head = self._head
        return head is None or (head.num_passed < MAX_PASSES and wanted <= head.pass_blocks)

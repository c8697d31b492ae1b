"""What must be true of the scheduler's state after every operation; for tests."""

from collections import Counter

import numpy as np

from paceline_engine.core.state import SchedulerState
from paceline_engine.core.tracked import RequestState


def check(state: SchedulerState) -> None:
    """Verify requests, slots, queue, tables, blocks and the prefix cache against each other.

    Raises:
        AssertionError: something does not add up; the message says what.
    """
    _check_requests(state)
    _check_slots(state)
    _check_tenants(state)
    refs: Counter[int] = Counter()
    for tracked in state.slots.tracked:
        if tracked is not None:
            blocks = state.slots.blocks(tracked.slot).tolist()
            assert len(set(blocks)) == len(blocks), f"slot {tracked.slot} has a block twice"
            refs.update(blocks)
    for tracked in state.queue:
        assert len(set(tracked.kept)) == len(tracked.kept), "a request keeps a block twice"
        refs.update(tracked.kept)
    holds = Counter(block for record in state.in_flight for block in record.held)
    state.pool.check(refs, holds)
    state.cache.check()
    if state.offload is not None:
        state.offload.check()
    if not state.requests and not state.in_flight:
        active, _, _, held = state.pool.usage()
        assert active == held == 0, f"{active} blocks leaked, {held} held"


def _check_requests(state: SchedulerState) -> None:
    waiting = list(state.queue)
    assert len({tracked.request_id for tracked in waiting}) == len(waiting), "a request waits twice"
    assert [t.key for t in waiting] == sorted(t.key for t in waiting), "the queue lost its order"
    assert state.queue.num_tokens == sum(t.num_waiting_tokens for t in waiting), "queue tokens"
    for tracked in waiting:
        assert tracked.slot == -1, f"waiting request {tracked.request_id} has a slot"
        assert tracked.state in (RequestState.WAITING, RequestState.PREEMPTED)
        num_kept_tokens = len(tracked.kept) * state.limits.block_size
        assert num_kept_tokens < len(tracked.token_ids), "nothing is left to compute"
        assert tracked.state is RequestState.PREEMPTED or not tracked.kept
    keepers = {tracked.request_id for tracked in waiting if tracked.kept}
    assert set(state.keepers) == keepers, "kept blocks whose owner is not known"
    seated = [tracked for tracked in state.slots.tracked if tracked is not None]
    assert all(tracked.state is RequestState.RUNNING for tracked in seated)
    ids = {tracked.request_id for tracked in (*waiting, *seated)}
    assert len(ids) == len(waiting) + len(seated), "a request runs and waits"
    assert ids == set(state.requests), "a request was lost, or is kept for ever"


def _check_tenants(state: SchedulerState) -> None:
    book = state.fair
    if book is None:
        return
    waiting = Counter(tracked.account for tracked in state.queue)
    running = Counter(tracked.account for tracked in state.slots.tracked if tracked is not None)
    assert None not in waiting, "a waiting request has no account"
    assert None not in running, "a running request has no account"
    known = list(book.accounts)
    assert sum(waiting.values()) == sum(waiting[account] for account in known), "a lost account"
    assert sum(running.values()) == sum(running[account] for account in known), "a lost account"
    tokens: Counter[str] = Counter()
    for tracked in state.queue:
        assert tracked.account is not None
        tokens[tracked.account.name] += tracked.num_waiting_tokens
    for account in known:
        assert account.num_waiting == waiting[account], f"{account.name} waits otherwise"
        assert account.num_running == running[account], f"{account.name} runs otherwise"
        assert account.waiting_tokens == tokens[account.name], f"{account.name} has other tokens"
        assert account.counter >= 0, f"{account.name} has a negative counter"


def _check_slots(state: SchedulerState) -> None:
    slots, tail = state.slots, state.expected.tail
    num_promised = slots.promised_blocks(tail)
    slots.forget_promises()
    assert slots.promised_blocks(tail) == num_promised, "promised blocks are not kept up to date"
    size = state.limits.block_size
    seated = [slot for slot, tracked in enumerate(slots.tracked) if tracked is not None]
    to_come = [-(-slots.compute_end[s] // size) - len(slots.blocks(s)) for s in seated]
    assert slots.num_to_come == sum(to_come) >= num_promised, "blocks to come are miscounted"
    assert min(to_come, default=0) >= 0, "a request has blocks that it can never fill"
    offered = np.flatnonzero(state.offered.count).tolist()
    assert set(offered) <= set(seated), "drafts of a request that left its slot"
    assert slots.num_seated == len(seated) == int(slots.is_seated.sum())
    assert slots.num_free + len(seated) == len(slots.tracked), "a slot was lost"
    order = slots.order[slots.is_seated[slots.order]].tolist()
    assert sorted(set(order)) == seated, "the running order lost a slot"
    assert set(state.prefilling) == {s for s in seated if slots.is_prefilling[s]}
    for slot in seated:
        tracked = slots.at(slot)
        computed, total = int(slots.computed[slot]), int(slots.total[slot])
        assert tracked.slot == slot
        assert slots.owned[slot] == len(slots.blocks(slot)) * size
        assert computed <= slots.owned[slot], f"slot {slot} computes beyond its blocks"
        drafts, in_flight = int(slots.drafts_in_flight[slot]), int(slots.in_flight[slot])
        assert computed <= total + in_flight + drafts, f"slot {slot} computes unknown tokens"
        assert drafts == 0 or in_flight == 1, f"slot {slot} goes on behind unverified drafts"
        assert total <= slots.limit[slot] <= state.limits.max_model_len
        assert 0 <= in_flight <= len(state.in_flight)
        assert (total - tracked.num_prompt_tokens) >= 0
        prompt = np.array(tracked.request.prompt_token_ids, dtype=np.int32)
        assert (slots.tokens[slot, : len(prompt)] == prompt).all(), f"slot {slot} lost its prompt"

"""One plan: running decodes first, then the chunks of running prompts, drafts, who waits.

Preemption for blocks happens in the first two parts and hits in the last, and a step that preempted
admits nobody; so nobody whose pending blocks were hit in this step can still be undone. A seat that
changes hands under Fair does so before all parts, and is taken in the same step.
"""

import numpy as np

from paceline_engine.core import fair_relief, intake, running, speculation, step_features
from paceline_engine.core.draft_plan import DraftPlan
from paceline_engine.core.fair_relief import Swap
from paceline_engine.core.lanes import LaneBudget, prefill_cap, split
from paceline_engine.core.plan import StepPlan
from paceline_engine.core.state import InFlight, SchedulerState
from paceline_engine.core.steady import SteadyBatch


def make(state: SchedulerState, now: float) -> StepPlan | None:
    """The next step, already in flight; None if nothing can be computed before a result comes."""
    swap = fair_relief.due(state)
    plan = _steady(state, now) if swap is None else None
    has_preempted = True
    while plan is None and has_preempted and state.requests:
        # Preempting may leave a step without rows; what was freed then serves the next attempt.
        plan, has_preempted = _attempt(state, now, swap)
        swap = None
    if plan is not None:
        state.offered.clear()
        plan.max_drafts = speculation.drafts_to_ask_for(state, plan)
        if state.offload is not None:
            state.offload.put_into(plan)
    return plan


def _steady(state: SchedulerState, now: float) -> StepPlan | None:
    """The step in which every running request goes on and nobody can join, if it is one."""
    if state.prefilling or state.in_flight or state.needs_resync or state.removed:
        return None
    if state.offered.has_any:
        return None
    if state.brake.is_on or (state.queue and intake.is_open(state, state.next_step_id)):
        return None
    steady = state.steady
    if steady is None:
        template = running.decode_rows(state)
        if not SteadyBatch.fits(state.slots, template):
            return None
        steady = state.steady = SteadyBatch(state.slots, template)
    num_rows = len(steady.template.slots)
    if num_rows > state.budget or steady.num_blocks_wanted() > state.pool.num_free:
        return None
    plan = steady.plan(state, state.next_step_id)
    state.next_step_id += 1
    state.in_flight.append(InFlight(plan, now, state.budget, num_rows, 0, 0, steady=steady))
    return plan


def _attempt(state: SchedulerState, now: float, swap: Swap | None) -> tuple[StepPlan | None, bool]:
    """Plan any kind of step; also says whether somebody was preempted for it."""
    state.leave_steady()
    slots = state.slots
    num_yielded = fair_relief.yield_seat(state, swap) if swap is not None else 0
    slots.compact()
    if state.fair is not None:
        state.fair.settle(slots)
    budget = state.budget
    draft = DraftPlan(state.next_step_id, LaneBudget(budget, budget, budget, 0))
    if state.needs_resync:
        _resync(state, draft)
    if slots.num_seated:
        running.plan_decodes(state, draft)
    is_open = intake.is_open(state, draft.step_id)
    if state.prefilling or is_open:
        share = _prefill_share(state, draft)
        budget -= draft.lanes.total - share
        draft.lanes = _split(state, share, is_open=is_open)
        if state.fair is not None:
            state.fair.begin_step(state.prefilling.values(), prefill_tokens=share if is_open else 0)
        running.plan_chunks(state, draft)
        slots.compact()
    speculation.plan_drafts(state, draft, is_open=is_open)
    if is_open and not draft.num_preempted and draft.lanes.total > 0:
        intake.admit(state, draft, now)
    if not draft.has_rows() and draft.lanes.is_shared():
        # The share that was kept for others found no taker. A waiting prompt counts as long by
        # its tokens, but wants a short one's share once its prefix is found in the cache.
        draft.lanes.open_up()
        running.plan_chunks(state, draft)
        if is_open and not draft.num_preempted and not draft.has_rows():
            intake.admit(state, draft, now)
    plan = draft.build(slots, state.removed)
    num_preempted = draft.num_preempted + num_yielded
    state.brake.step(has_preempted=draft.num_preempted > 0)
    state.num_plans_tried += 1
    if plan is None:
        return None, num_preempted > 0
    if draft.chunks:
        _leave_prefill(state, draft)
    state.removed = []
    state.needs_resync = False
    state.next_step_id += 1
    state.in_flight.append(
        InFlight(
            plan,
            now,
            budget,
            num_decodes=len(plan.slots) - len(draft.chunks),
            num_prefill_tokens=sum(draft.chunks.values()),
            num_preempted=num_preempted,
            num_recomputed=draft.num_recomputed,
        )
    )
    return plan, num_preempted > 0


def _prefill_share(state: SchedulerState, draft: DraftPlan) -> int:
    """What decodes left of the budget, or less: what fits the target between two tokens."""
    left, target_ms = draft.lanes.total, state.settings.step_target_ms
    if target_ms is None or draft.decodes is None:
        return left
    rows, slots = draft.decodes.at, state.slots
    if not len(rows):
        return left
    decodes = step_features.of_decodes(slots.computed[rows] + 1)
    first = min(state.prefilling.values(), key=state.rank, default=None)
    context = int(slots.computed[first.slot]) if first is not None else 0
    return min(left, state.governor.prefill_tokens(target_ms, decodes, context=context))


def _split(state: SchedulerState, budget: int, *, is_open: bool) -> LaneBudget:
    """Share what decodes left between long and short prompts.

    Under a target in milliseconds the share is small already; the lanes then split it and nobody
    is capped below it.
    """
    others = len(state.requests) - 1
    is_governed = state.settings.step_target_ms is not None
    if is_governed and state.settings.long_prefill_tokens is None:
        cap = budget if others > 0 else 0
    else:
        cap = prefill_cap(state.settings.long_prefill_tokens, state.budget, others)
    if not cap:
        return split(budget, 0, 0, 0, 0)
    slots, queued = state.slots, state.queue.lane_tokens if is_open else (0, 0)
    left = [int(slots.total[slot] - slots.computed[slot]) for slot in state.prefilling]
    return split(
        budget,
        cap,
        long_wants=sum(cap for n in left if n > cap) + queued[1],
        short_wants=sum(n for n in left if n <= cap) + queued[0],
        turn=state.num_plans_tried,
    )


def _leave_prefill(state: SchedulerState, draft: DraftPlan) -> None:
    """Requests whose known tokens are all planned are decodes from the next step on."""
    slots = state.slots
    rows = np.fromiter(draft.chunks, dtype=np.intp, count=len(draft.chunks))
    done = rows[slots.computed[rows] >= slots.total[rows]]
    slots.is_prefilling[done] = False
    for slot in done.tolist():
        state.prefilling.pop(slot, None)
        state.template = None


def _resync(state: SchedulerState, draft: DraftPlan) -> None:
    """After a failed step the runner's batch is unknown: empty it and give it everybody again."""
    state.removed = list(range(len(state.slots.tracked)))
    slots = state.slots
    for slot in slots.order.tolist():
        num_computed, blocks = int(slots.computed[slot]), slots.blocks(slot).tolist()
        state.announce(slots.at(slot), draft, slots.known_tokens(slot), num_computed, blocks)

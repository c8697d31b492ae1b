"""The older way to make steps, to compare with: prompts in some, decodes in others.

Prompts go first, as engines did before chunked prefill was mixed in, so running streams stand still
while anybody's prompt is computed. Everything else (queue, blocks, prefix cache, preemption,
statistics) is the core's own.
"""

from paceline_engine.core import intake, running
from paceline_engine.core.draft_plan import DraftPlan
from paceline_engine.core.lanes import LaneBudget, split
from paceline_engine.core.plan import StepPlan
from paceline_engine.core.scheduler import Scheduler
from paceline_engine.core.state import InFlight, SchedulerState


class DualTrackScheduler(Scheduler):
    """A scheduler whose steps hold prompt tokens or decodes, never both."""

    def plan(self, now: float) -> StepPlan | None:
        """The next step: prompts if there are any and they fit, else decodes."""
        state = self._state
        if state.in_flight or not state.requests:
            return None
        plan = _prompts(state, now)
        tries_again = True
        while plan is None and tries_again and state.requests:
            plan, tries_again = _decodes(state, now)
        if plan is not None and state.offload is not None:
            state.offload.put_into(plan)
        return plan


def _prompts(state: SchedulerState, now: float) -> StepPlan | None:
    is_open = intake.is_open(state, state.next_step_id)
    if not state.prefilling and not is_open:
        return None
    state.leave_steady()
    state.slots.compact()
    draft = DraftPlan(state.next_step_id, split(state.budget, 0, 0, 0, 0))
    if state.fair is not None:
        state.fair.settle(state.slots)
        prompts = state.prefilling.values()
        state.fair.begin_step(prompts, prefill_tokens=state.budget if is_open else 0)
    running.plan_chunks(state, draft)
    state.slots.compact()
    if is_open and not draft.num_preempted and draft.lanes.total > 0:
        intake.admit(state, draft, now)
    return _launched(state, draft, now)


def _decodes(state: SchedulerState, now: float) -> tuple[StepPlan | None, bool]:
    state.leave_steady()
    state.slots.compact()
    budget = state.budget
    draft = DraftPlan(state.next_step_id, LaneBudget(budget, budget, budget, 0))
    if state.slots.num_seated:
        running.plan_decodes(state, draft)
    return _launched(state, draft, now), draft.num_preempted > 0


def _launched(state: SchedulerState, draft: DraftPlan, now: float) -> StepPlan | None:
    plan = draft.build(state.slots, state.removed)
    state.brake.step(has_preempted=draft.num_preempted > 0)
    state.num_plans_tried += 1
    if plan is None:
        return None
    for slot in draft.chunks:
        if state.slots.computed[slot] >= state.slots.total[slot]:
            state.prefilling.pop(slot, None)
            state.slots.is_prefilling[slot] = False
            state.template = None
    state.removed = []
    state.next_step_id += 1
    state.in_flight.append(
        InFlight(
            plan,
            now,
            state.budget,
            num_decodes=len(plan.slots) - len(draft.chunks),
            num_prefill_tokens=sum(draft.chunks.values()),
            num_preempted=draft.num_preempted,
        )
    )
    return plan

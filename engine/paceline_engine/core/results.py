"""What a step gave: tokens are appended, requests end, full blocks get their names.

A row whose epoch is older than its slot's is void: the request was preempted, aborted or ended
after the row was planned.
"""

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core import endings, speculation, step_features
from paceline_engine.core.plan import Int32, StepOutputs, StepPlan, StepResult, TokenLogprobs
from paceline_engine.core.request import Finished, FinishReason
from paceline_engine.core.slots import Rows
from paceline_engine.core.state import InFlight, SchedulerState
from paceline_engine.core.steady import SteadyBatch
from paceline_engine.core.step_record import StepRecord
from paceline_engine.core.stop import GOES_ON, Verdict
from paceline_engine.core.tracked import TrackedRequest


def take_record(state: SchedulerState, step_id: int) -> InFlight:
    """The oldest plan in flight; results come in the order of the plans.

    Raises:
        ValueError: another step was expected.
    """
    expected = state.in_flight[0].plan.step_id if state.in_flight else None
    if step_id != expected:
        raise ValueError(f"expected the result of step {expected}, got that of step {step_id}")
    record = state.in_flight.popleft()
    state.pool.unhold(record.held)
    return record


def apply_steady(
    state: SchedulerState,
    steady: SteadyBatch,
    record: InFlight,
    result: StepResult,
    now: float,
) -> StepOutputs:
    """Put the results of a step in force in which everybody goes on."""
    outputs = steady.apply(state, result)
    if result.drafts is not None:
        speculation.offer(state, record.plan, steady.template.slots, result.drafts)
    state.recorder.tokens(steady.template.slots, None, now)
    if state.cached_news:
        outputs.num_cached_tokens, state.cached_news = state.cached_news, {}
    _record_steady(state, steady, record, result, now)
    return outputs


def apply(state: SchedulerState, record: InFlight, result: StepResult, now: float) -> StepOutputs:
    """Put one step's results in force."""
    plan, slots = record.plan, state.slots
    news, state.cached_news = state.cached_news, {}
    state.leave_steady()
    state.cache.confirm(plan.step_id)
    slots.forget_promises()
    at = plan.slots.astype(np.intp)
    valid = slots.epoch[at] == plan.epochs
    finished: list[Finished] = []
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
    if result.prompt_logprobs:
        prompt_logprobs = _gather_prompt_logprobs(state, plan, result, valid)
    if result.errors:
        for row, message in result.errors.items():
            if valid[row]:
                tracked = slots.at(int(plan.slots[row]))
                finished.append(
                    endings.end(state, tracked, FinishReason.ERROR, now, message=message)
                )
                valid[row] = False
    yielded = valid & plan.samples
    index = None if np.count_nonzero(yielded) == len(yielded) else yielded.nonzero()[0]
    rows = at if index is None else at[index]
    ids = plan.request_ids if index is None else plan.request_ids[index]
    tokens = result.tokens if index is None else result.tokens[index]
    num_accepted = 0
    has_drafts = len(plan.draft_tokens) > 0  # a result may be one token wide nevertheless
    if len(rows) and not has_drafts:
        totals = _append(state, rows, tokens[:, 0])
        if state.cache.enabled and len(full := (totals % slots.block_size == 0).nonzero()[0]):
            state.name_filled(rows[full], totals[full])
        state.recorder.tokens(plan.slots if index is None else rows, None, now)
        finished += _end(state, rows, tokens, state.stops.judge(rows, totals, tokens), now)
    elif len(rows):
        accepted = speculation.append(state, rows, tokens)
        tokens, num_accepted = accepted.tokens, int(accepted.num_drafts.sum())
        drafts = plan.num_drafts if index is None else plan.num_drafts[index]
        state.draft_length.observe_accepted(drafts, accepted.num_drafts)
        _name_full_blocks(state, rows, accepted.totals, slots.total[rows] - 1)
        state.recorder.tokens(rows, accepted.verdict.kept, now)
        state.recorder.discarded(accepted.num_discarded)
        finished += _end(state, rows, tokens, accepted.verdict, now)
    if result.drafts is not None:
        goes_on = yielded & (slots.epoch[at] == plan.epochs)
        speculation.offer(state, plan, plan.slots[goes_on], result.drafts[goes_on])
    if index is not None:
        state.recorder.discarded(int(np.count_nonzero(plan.samples & ~valid)))
        finished += _end_without_tokens(state, plan, valid & ~plan.samples, now)
    outputs = StepOutputs(
        step_id=plan.step_id, request_ids=ids, tokens=tokens, prompt_logprobs=prompt_logprobs
    )
    outputs.finished = finished
    if result.logprobs:
        outputs.logprobs = {
            int(plan.request_ids[row]): entries[: _num_kept(tokens, index, row)]
            for row, entries in result.logprobs.items()
            if yielded[row]
        }
    outputs.num_cached_tokens = news
    _record(state, record, result, now, num_accepted)
    return outputs


def _record_steady(
    state: SchedulerState, steady: SteadyBatch, record: InFlight, result: StepResult, now: float
) -> None:
    """What `_record` writes, without a look at the rows: each computed and gave one token."""
    plan = record.plan
    speculation.observe_step(state, plan, result, 0)
    kv_tokens = steady.kv_tokens_read
    state.recorder.step(
        StepRecord(
            step_id=plan.step_id,
            planned_s=record.planned_s,
            applied_s=now,
            budget_tokens=record.budget,
            num_rows=record.num_decodes,
            num_decode_tokens=record.num_decodes,
            kv_tokens_read=kv_tokens,
            attention_pairs=kv_tokens,
            num_sampled=record.num_decodes,
            host_ms=result.host_ms,
            device_ms=result.device_ms,
            num_stored_blocks=len(plan.store_slots),
            store_ms=result.store_ms,
        )
    )


def _record(
    state: SchedulerState,
    record: InFlight,
    result: StepResult,
    now: float,
    num_accepted_tokens: int = 0,
) -> None:
    plan = record.plan
    if not record.num_prefill_tokens:
        speculation.observe_step(state, plan, result, num_accepted_tokens)
    sizes = step_features.of(plan)
    state.recorder.step(
        StepRecord(
            step_id=plan.step_id,
            planned_s=record.planned_s,
            applied_s=now,
            budget_tokens=record.budget,
            num_rows=len(plan.slots),
            num_prefill_tokens=record.num_prefill_tokens,
            num_decode_tokens=record.num_decodes,
            num_draft_tokens=len(plan.draft_tokens),
            num_drafts=int(np.count_nonzero(plan.num_drafts)) if len(plan.draft_tokens) else 0,
            num_accepted_tokens=num_accepted_tokens,
            kv_tokens_read=sizes.kv_tokens_read,
            attention_pairs=sizes.attention_pairs,
            num_sampled=sizes.num_sampled,
            num_preempted=record.num_preempted,
            num_recomputed_tokens=record.num_recomputed,
            host_ms=result.host_ms,
            device_ms=result.device_ms,
            num_stored_blocks=len(plan.store_slots),
            num_loaded_blocks=len(plan.load_slots),
            store_ms=result.store_ms,
            load_ms=result.load_ms,
        )
    )


def _append(state: SchedulerState, rows: Rows, tokens: Int32) -> Int32:
    """Add one token to each; returns how many each had before."""
    slots = state.slots
    totals: Int32 = slots.total[rows]
    slots.flat_tokens[rows * slots.tokens.shape[1] + totals] = tokens
    slots.total[rows] = totals + slots.ones[: len(rows)]
    slots.in_flight[rows] -= 1
    return totals


def _name_full_blocks(state: SchedulerState, rows: Rows, starts: Int32, ends: Int32) -> None:
    """Blocks that are full of known, computed tokens now: the last inputs filled them.

    A chunk's blocks were named when it was planned; naming one twice does nothing.

    Args:
        state: mutated.
        rows: [m] slots that got tokens.
        starts: [m] the first computed count at which a block may have become full.
        ends: [m] their computed tokens: all but the token that was sampled last.
    """
    if not state.cache.enabled:
        return
    size = state.limits.block_size
    full = -(-starts // size) * size
    is_full = full <= ends
    while is_full.any():
        state.name_filled(rows[is_full], full[is_full])
        full = full + size
        is_full = full <= ends


def _num_kept(tokens: Int32, index: NDArray[np.intp] | None, row: int) -> int:
    """Tokens of a row of the plan that count.

    Args:
        tokens: [m, width] of the rows that yielded some, -1 behind those that count.
        index: [m] their rows; None: all.
        row: of the plan.
    """
    at = row if index is None else int(np.searchsorted(index, row))
    return int(np.count_nonzero(tokens[at] >= 0))


def _end(
    state: SchedulerState, rows: Rows, tokens: Int32, verdict: Verdict, now: float
) -> list[Finished]:
    ends = (verdict.ends != GOES_ON).nonzero()[0]
    if not len(ends):
        return []
    reasons = [reason for row in ends.tolist() if (reason := verdict.reason(row)) is not None]
    last = tokens[ends, verdict.kept[ends] - 1].tolist()
    return endings.end_by_themselves(state, rows[ends], reasons, last, now)


def _end_without_tokens(
    state: SchedulerState, plan: StepPlan, silent: NDArray[np.bool_], now: float
) -> list[Finished]:
    """Requests with max_tokens 0 end with the last chunk of their prompt."""
    slots = state.slots
    rows = plan.slots[silent]
    ends = plan.starts[silent] + plan.num_tokens[silent]
    over = rows[(ends >= slots.limit[rows]) & (slots.total[rows] >= slots.limit[rows])]
    return [endings.end(state, slots.at(slot), FinishReason.LENGTH, now) for slot in over.tolist()]


def _gather_prompt_logprobs(
    state: SchedulerState, plan: StepPlan, result: StepResult, valid: NDArray[np.bool_]
) -> dict[int, list[TokenLogprobs]]:
    """Entries not gathered before; what is computed again after preemption is dropped.

    A row's entries end at its last position inside the prompt, wherever they begin.
    """
    gathered: dict[int, list[TokenLogprobs]] = {}
    for row, entries in result.prompt_logprobs.items():
        if not valid[row]:
            continue
        tracked: TrackedRequest = state.slots.at(int(plan.slots[row]))
        last = int(plan.starts[row] + plan.num_tokens[row])
        last = min(last, tracked.num_prompt_tokens - 1)
        new = last - tracked.num_prompt_logprobs
        if new > 0:
            assert len(entries) >= new, f"{new} prompt positions lack their log-probabilities"
            gathered[tracked.request_id] = entries[len(entries) - new :]
            tracked.num_prompt_logprobs = last
    return gathered


def restore(state: SchedulerState, failed: InFlight) -> None:
    """A step failed: it and the steps planned on top of it never happened.

    Their pending names are withdrawn, C falls back to what it was before the first of them (for
    those who had hit such a name: to before the first such block), planned rows become void, and
    the next plan gives the runner every running request anew.
    """
    state.leave_steady()
    slots = state.slots
    slots.forget_promises()
    void = [failed, *state.in_flight]
    kept: dict[int, int] = {}
    starts: dict[int, int] = {}
    for record in void:
        if state.offload is not None:
            state.offload.failed(record.plan)
        for request_id, tokens in state.cache.withdraw(record.plan.step_id).items():
            kept[request_id] = min(tokens, kept.get(request_id, tokens))
        plan = record.plan
        valid = slots.epoch[plan.slots] == plan.epochs
        for slot, start in zip(
            plan.slots[valid].tolist(), plan.starts[valid].tolist(), strict=True
        ):
            starts.setdefault(slot, start)
        # Who was preempted after such a plan kept, or brought back, blocks that it was to fill.
        for request_id, start in zip(
            plan.request_ids[~valid].tolist(), plan.starts[~valid].tolist(), strict=True
        ):
            kept[request_id] = min(start, kept.get(request_id, start))
    newest = state.in_flight[-1] if state.in_flight else None
    for slot in slots.order[slots.is_seated[slots.order]].tolist():
        tracked = slots.at(slot)
        computed = starts.get(slot, int(slots.computed[slot]))
        limit = kept.get(tracked.request_id)
        if limit is not None and limit < computed:
            computed = limit
            state.give_up_blocks(slots.truncate(slot, limit), newest)
        slots.computed[slot] = computed
        slots.in_flight[slot] = slots.drafts_in_flight[slot] = 0
        slots.epoch[slot] += 1
        is_prefilling = int(slots.total[slot]) - computed != 1 or not _yields(tracked)
        slots.is_prefilling[slot] = is_prefilling
        if is_prefilling:
            state.prefilling[slot] = tracked
        else:
            state.prefilling.pop(slot, None)
    for request_id, tracked in list(state.keepers.items()):
        tokens = len(tracked.kept) * state.limits.block_size
        tokens = min(tokens, kept.get(request_id, tokens))
        state.drop_kept(tracked, tokens // state.limits.block_size)
    state.template = None
    state.needs_resync = True
    state.is_intake_due = True


def _yields(tracked: TrackedRequest) -> bool:
    return tracked.request.params.max_tokens > 0

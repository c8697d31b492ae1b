"""The end of requests: by themselves, together with others of a step, or from outside, anywhere."""

from paceline_engine.core.request import Finished, FinishReason
from paceline_engine.core.slots import Rows
from paceline_engine.core.state import SchedulerState
from paceline_engine.core.tracked import RequestState, TrackedRequest

_BY_ITSELF = (FinishReason.STOP, FinishReason.LENGTH)


def end(
    state: SchedulerState,
    tracked: TrackedRequest,
    reason: FinishReason,
    now: float,
    *,
    num_output_tokens: int | None = None,
    message: str = "",
) -> Finished:
    """A request is over, wherever it was; nothing of it is left but what is cached."""
    if tracked.slot >= 0:
        state.leave_steady()
        total = int(state.slots.total[tracked.slot])
        state.leave_slots([tracked])
    else:
        total = len(tracked.token_ids)
        state.queue.remove(tracked)
        state.drop_kept(tracked, 0)
        state.is_intake_due = True
    have = total - tracked.num_prompt_tokens
    finished = Finished(
        request_id=tracked.request_id,
        reason=reason,
        num_prompt_tokens=tracked.num_prompt_tokens,
        num_output_tokens=have if num_output_tokens is None else num_output_tokens,
        num_cached_tokens=tracked.num_cached_tokens,
        message=message,
    )
    # The client has still to look for its stop strings in what ends by itself.
    is_final = num_output_tokens is not None or reason not in _BY_ITSELF
    _forget(state, tracked, finished, now, is_final=is_final)
    return finished


def end_by_themselves(
    state: SchedulerState,
    rows: Rows,
    reasons: list[FinishReason],
    stop_token_ids: list[int],
    now: float,
) -> list[Finished]:
    """Running requests came to their ends in one step.

    Args:
        state: mutated; the lockstep is over already.
        rows: [m] their slots.
        reasons: why: STOP or LENGTH.
        stop_token_ids: their last tokens.
        now: when.
    """
    seats = rows.tolist()
    leaving = [state.slots.at(slot) for slot in seats]
    totals = state.slots.total[rows].tolist()
    state.leave_slots(leaving)
    ends = []
    for tracked, total, reason, token in zip(leaving, totals, reasons, stop_token_ids, strict=True):
        finished = Finished(
            request_id=tracked.request_id,
            reason=reason,
            num_prompt_tokens=tracked.num_prompt_tokens,
            num_output_tokens=total - tracked.num_prompt_tokens,
            num_cached_tokens=tracked.num_cached_tokens,
            stop_token_id=token if reason is FinishReason.STOP else None,
        )
        _forget(state, tracked, finished, now, is_final=False)
        ends.append(finished)
    return ends


def _forget(
    state: SchedulerState,
    tracked: TrackedRequest,
    finished: Finished,
    now: float,
    *,
    is_final: bool,
) -> None:
    """A request that left its slot, or the queue, is over."""
    request_id = tracked.request_id
    del state.requests[request_id]
    state.cached_news.pop(request_id, None)
    tracked.state = RequestState.FINISHED
    if finished.reason in _BY_ITSELF:
        state.expected.observe(
            finished.num_output_tokens, tracked.limit - tracked.num_prompt_tokens
        )
    state.recorder.request_finished(
        finished, now, tracked.request, tracked.chain.keys, is_final=is_final
    )

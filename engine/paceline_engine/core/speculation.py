"""Draft tokens in the schedule: what was proposed, what of it a step verifies, what came of it.

A runner proposes drafts with a result (`StepResult.drafts`), as many as the plan asked for. The
next plan takes what budget, blocks and lengths leave room for, and drops the rest: drafts never
outlive a step. They come after the chunks of running prompts and never preempt anybody, so a
request alone is trimmed to no drafts before it is short of blocks. C and blocks are planned as if
all drafts held; what was rejected is taken back when the result comes. Drafts are never hashed:
blocks get their names up to the tokens that were accepted.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline_crds.settings import EngineSettings, SpeculativeMethod
from paceline_engine.core.draft_plan import DraftPlan, PlannedDrafts
from paceline_engine.core.plan import Int32, StepPlan, StepResult
from paceline_engine.core.slots import Rows
from paceline_engine.core.stop import Verdict

if TYPE_CHECKING:
    from paceline_engine.core.state import SchedulerState


def max_drafts(settings: EngineSettings) -> int:
    """Most draft tokens of a request in a step, by the settings in force."""
    if settings.speculative_method is SpeculativeMethod.NONE:
        return 0
    return settings.speculative_num_tokens


def withheld_blocks(settings: EngineSettings) -> int:
    """Blocks by which a prefix hit stops earlier.

    A head that reads hidden states writes at each position what depends on the token behind it. At
    the end of a block that token belongs to the next one, which another request may have gone on
    with; a block whose successor was found too holds what is right.
    """
    return int(settings.speculative_method in {SpeculativeMethod.EAGLE, SpeculativeMethod.MTP})


def drafts_to_ask_for(state: "SchedulerState", plan: StepPlan) -> int:
    """Most drafts that each row of a plan may bring along with its result."""
    most = max_drafts(state.settings)
    if not most or not state.settings.speculative_adaptive:
        return most
    return state.draft_length.choose(int(np.count_nonzero(plan.samples)), most)


class OfferedDrafts:
    """What the runner proposed with its newest result, by slot. Mutable; the state owns it.

    Attributes:
        has_any: there may be something; False costs a step nothing.
        count: [slots] int32.
        tokens: [slots, width] int32, valid up to `count`.
    """

    def __init__(self, max_slots: int) -> None:
        self.has_any = False
        self.count = np.zeros(max_slots, dtype=np.int32)
        self.tokens = np.zeros((max_slots, 1), dtype=np.int32)

    def offer(self, slots: Int32, drafts: Int32) -> Int32:
        """Drafts [m, width] of these slots, -1 behind the last of each; returns how many each."""
        counts: Int32 = np.count_nonzero(drafts >= 0, axis=1).astype(np.int32)
        if not counts.any():
            return counts
        width = drafts.shape[1]
        if width > self.tokens.shape[1]:
            self.tokens = np.zeros((len(self.tokens), width), dtype=np.int32)
        self.tokens[slots, :width] = drafts
        self.count[slots] = counts
        self.has_any = True
        return counts

    def forget(self, slots: list[int]) -> None:
        """Requests left these slots."""
        if self.has_any:
            self.count[slots] = 0

    def clear(self) -> None:
        """A step was planned: what it did not take is void."""
        if self.has_any:
            self.count[:] = 0
            self.has_any = False


def plan_drafts(state: "SchedulerState", draft: DraftPlan, *, is_open: bool) -> None:
    """Add drafts to the decodes of a step; its rows are not taken back afterwards.

    Args:
        state: blocks are appended to its tables.
        draft: with its decodes and chunks.
        is_open: requests may be admitted in this step; they find at least half of what is left.
    """
    offered, decodes = state.offered, draft.decodes
    if not offered.has_any or decodes is None:
        return
    slots, rows = state.slots, decodes.at
    wanted = np.minimum(offered.count[rows], max_drafts(state.settings))
    # A row of d drafts yields up to d + 1 tokens; one that waits for a result has no known end.
    wanted = np.minimum(wanted, slots.limit[rows] - slots.total[rows] - 1)
    wanted[slots.in_flight[rows] > 0] = 0
    if gone := draft.dropped | draft.skipped:
        wanted[np.isin(rows, np.array(list(gone), dtype=np.int32))] = 0
    budget = draft.lanes.total // 2 if is_open else draft.lanes.total
    if state.settings.speculative_adaptive:
        budget = min(budget, state.draft_length.max_total)
    counts = _reserve(state, draft, rows, _within(np.maximum(wanted, 0), budget))
    total = int(counts.sum())
    if not total:
        return
    draft.lanes.total -= total
    width = int(counts.max())
    chosen = offered.tokens[rows, :width]
    draft.drafts = PlannedDrafts(counts, chosen)


def _within(wanted: Int32, budget: int) -> Int32:
    """The largest equal limit for all rows that keeps the sum within the budget."""
    if int(wanted.sum()) <= budget:
        return wanted
    most = int(wanted.max())
    sums = np.array([int(np.minimum(wanted, limit).sum()) for limit in range(most)])
    return np.minimum(wanted, np.int32(np.flatnonzero(sums <= budget)[-1]))


def _reserve(state: "SchedulerState", draft: DraftPlan, rows: Rows, counts: Int32) -> Int32:
    """Append the blocks that drafts reach into, or trim all drafts to the blocks there are."""
    slots, size = state.slots, state.limits.block_size
    beyond = slots.computed[rows] + 1 + counts - slots.owned[rows]
    missing = np.maximum(-(-beyond // size), 0)
    total = int(missing.sum())
    is_short = draft.is_refused or draft.num_preempted
    spare = 0 if is_short else state.pool.num_free - state.reserve_blocks
    if total > spare:
        trimmed: Int32 = np.maximum(counts - np.maximum(beyond, 0), 0)
        return trimmed
    for number in range(int(missing.max(initial=0))):
        takers = rows[missing > number]
        blocks = state.pool.allocate_many_one(len(takers))
        slots.append_one_each(takers, blocks)
        draft.note_blocks(takers, blocks)
    return counts


@dataclass(frozen=True, slots=True)
class Accepted:
    """What of a step's tokens counts.

    Attributes:
        totals: [m] tokens that each request had before.
        tokens: [m, width] int32 that count, -1 behind them.
        verdict: how many of each count, and who ends.
        num_drafts: [m] drafts that held, also those behind an end.
        num_discarded: tokens behind an end.
    """

    totals: Int32
    tokens: Int32
    verdict: Verdict
    num_drafts: Int32
    num_discarded: int


def append(state: "SchedulerState", rows: Rows, tokens: Int32) -> Accepted:
    """Add each row's tokens up to its end, and take back what rejected drafts had advanced.

    Args:
        state: mutated.
        rows: [m] slots that yielded tokens.
        tokens: [m, width] int32, at least one each, -1 behind a row's tokens.
    """
    slots = state.slots
    totals: Int32 = slots.total[rows]
    given = np.count_nonzero(tokens >= 0, axis=1).astype(np.int32)
    verdict = state.stops.judge(rows, totals, tokens)
    kept = verdict.kept
    counts = np.arange(tokens.shape[1]) < kept[:, None]
    positions = totals[:, None] + np.arange(tokens.shape[1], dtype=np.int32)
    slots.tokens[np.repeat(rows, kept), positions[counts]] = tokens[counts]
    slots.total[rows] = totals + kept
    slots.in_flight[rows] -= 1
    slots.computed[rows] -= slots.drafts_in_flight[rows] - (kept - 1)
    slots.drafts_in_flight[rows] = 0
    return Accepted(
        totals=totals,
        tokens=np.where(counts, tokens, np.int32(-1))[:, : max(1, int(kept.max()))],
        verdict=verdict,
        num_drafts=given - 1,
        num_discarded=int(given.sum() - kept.sum()),
    )


def offer(state: "SchedulerState", plan: StepPlan, slots: Int32, drafts: Int32) -> None:
    """Keep the drafts that came with a result for the next plan.

    Args:
        state: mutated.
        plan: the one that asked for them.
        slots: [m] whose requests go on.
        drafts: [m, width], -1 behind the last of each.
    """
    counts = state.offered.offer(slots, drafts)
    if len(slots):
        state.draft_length.observe_offer(counts, plan.max_drafts)


def observe_step(
    state: "SchedulerState", plan: StepPlan, result: StepResult, num_accepted: int
) -> None:
    """Learn what a step of decodes alone cost, with drafts or without."""
    if not max_drafts(state.settings):
        return
    length = state.draft_length
    length.observe_step(
        len(plan.slots),
        len(plan.draft_tokens),
        num_accepted,
        result.host_ms + result.device_ms - result.propose_ms,
        propose_ms=result.propose_ms,
        num_asked=plan.max_drafts * int(np.count_nonzero(plan.samples)),
    )
    state.recorder.speculation_goodput = length.goodput

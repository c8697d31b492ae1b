"""The scheduler's state and its few transitions: take a slot, lose it, end.

Everything that decides (`planner`, `running`, `preemption`, `intake`, `results`) works on this.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline_crds.settings import EngineSettings, SchedulingPolicy
from paceline_engine.core import offload
from paceline_engine.core.admission import Brake, DrainRate, ExpectedOutput
from paceline_engine.core.block_pool import NULL_BLOCK, BlockPool
from paceline_engine.core.draft_length import DraftLength
from paceline_engine.core.draft_plan import DraftPlan, RowTemplate
from paceline_engine.core.fair import FairBook
from paceline_engine.core.governor import Governor
from paceline_engine.core.lanes import prefill_cap
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import AddedRequest, StepPlan
from paceline_engine.core.prefix_cache import PrefixCache
from paceline_engine.core.queues import WaitingQueue, order_key
from paceline_engine.core.slots import Int32, Rows, Slots
from paceline_engine.core.speculation import OfferedDrafts, withheld_blocks
from paceline_engine.core.stats import Recorder
from paceline_engine.core.steady import SteadyBatch
from paceline_engine.core.stop import StopRules
from paceline_engine.core.tracked import OrderKey, RequestState, TrackedRequest, WaitReason

HEAD_BLOCKS = 4
"""Blocks that make the head of a prompt, when heads are compared."""


@dataclass(slots=True)
class InFlight:
    """A plan whose result is not known yet.

    Attributes:
        held: blocks given up while the step uses them, tail first.
        planned_s: when it was planned.
        budget: its token budget.
        num_decodes: rows of requests that had no prompt left.
        num_prefill_tokens: tokens of the other rows.
        num_preempted: requests that lost their slot for it.
        num_recomputed: tokens that requests which came back with it have to compute again.
        steady: the batch that planned it, if one did.
    """

    plan: StepPlan
    planned_s: float
    budget: int
    num_decodes: int
    num_prefill_tokens: int
    num_preempted: int
    num_recomputed: int = 0
    steady: SteadyBatch | None = None
    held: list[int] = field(default_factory=list)


def _watermark_blocks(settings: EngineSettings, limits: EngineLimits) -> int:
    return int(float(settings.watermark) * (limits.num_blocks - 1))


class SchedulerState:
    """Mutable, one per engine.

    Attributes:
        watermark_blocks: blocks that admission leaves free.
        requests: every request that has not ended, by id.
        prefilling: slot -> running request that wants more than one token.
        in_flight: plans without results, oldest first.
        removed: slots that the runner must forget with the next plan.
        template: arrays of the all-decode step; None after somebody came or went.
        offered: drafts that the next plan may take.
        draft_length: how many of them pay.
        fair: the book of tenants, under policy Fair alone.
        offload: the host tier; None without one.
        steady: decodes in lockstep; the slots' arrays are behind it until it is settled.
        needs_resync: a step failed: the next plan adds every running request again.
        cached_news: request id -> cached tokens that no output has told yet.
        gives_all_back: preempted requests keep nothing and the last runs out first: to compare.
        keepers: waiting requests that kept blocks when they were preempted, by id.
        is_intake_due: something happened that may let a waiting request in.
        is_batch_open: static batching: the batch still takes requests.
        rotation: where the decodes start that get budget when it is too small for all.
    """

    def __init__(
        self,
        settings: EngineSettings,
        limits: EngineLimits,
        recorder: Recorder,
        expected: ExpectedOutput,
        *,
        gives_all_back: bool = False,
    ) -> None:
        self.recorder = recorder
        self.settings = settings
        self.limits = limits
        self.watermark_blocks = _watermark_blocks(settings, limits)
        self.pool = BlockPool(limits.num_blocks)
        self.cache = PrefixCache(
            self.pool,
            limits.block_size,
            limits.cache_root,
            enabled=settings.prefix_caching,
            num_withheld=withheld_blocks(settings),
        )
        self.slots = Slots(limits)
        self.stops = StopRules(limits.max_slots, limits.eos_token_ids)
        self.fair = self._book(settings, None)
        self.queue = WaitingQueue(settings, self.lane_cap, self.fair)
        self.expected = expected
        self.brake = Brake()
        self.drain = DrainRate()
        self.governor = Governor()
        self.offload = offload.host_tier(limits, self.governor.model, self.cache)
        self.requests: dict[int, TrackedRequest] = {}
        self.prefilling: dict[int, TrackedRequest] = {}
        self.keepers: dict[int, TrackedRequest] = {}
        self.gives_all_back = gives_all_back
        self.in_flight: deque[InFlight] = deque()
        self.removed: list[int] = []
        self.template: RowTemplate | None = None
        self.offered = OfferedDrafts(limits.max_slots)
        self.draft_length = DraftLength()
        self.steady: SteadyBatch | None = None
        self.needs_resync = False
        self.cached_news: dict[int, int] = {}
        self.is_intake_due = True
        self.is_batch_open = True
        self.rotation = 0
        self.next_step_id = 0
        self.num_plans_tried = 0
        self._num_seatings = 0

    # -- limits in force ---------------------------------------------------------------------

    @property
    def budget(self) -> int:
        """Tokens of a step at most."""
        return min(self.settings.max_num_batched_tokens, self.limits.max_step_tokens)

    @property
    def lane_cap(self) -> int:
        """More tokens than this make a prompt long, while others run; 0 = there is one lane."""
        return prefill_cap(self.settings.long_prefill_tokens, self.budget, 1)

    @property
    def reserve_blocks(self) -> int:
        """Blocks that admission leaves free: the watermark's, and more after preemptions."""
        return self.watermark_blocks + self.brake.extra_blocks(self.slots.num_seated)

    @property
    def num_free_seats(self) -> int:
        """Requests that may still take a slot."""
        return min(self.settings.max_num_seqs - self.slots.num_seated, self.slots.num_free)

    def rank(self, tracked: TrackedRequest) -> OrderKey:
        """Place of a request among those that run or kept blocks; smaller is served first."""
        return tracked.key if self.fair is None else self.fair.rank(tracked)

    def turn(self, tracked: TrackedRequest) -> OrderKey:
        """Place of a running prompt in the order of the budget."""
        return tracked.key if self.fair is None else self.fair.turn(tracked)

    # -- transitions -------------------------------------------------------------------------

    def settle(self) -> None:
        """Bring the slots' arrays up to date; due before anything but a steady step reads them."""
        if self.steady is not None:
            self.steady.settle()

    def leave_steady(self) -> None:
        """Somebody comes, goes or is planned otherwise: the lockstep is over."""
        if self.steady is not None:
            self.steady.settle()
            self.steady = None

    def seat(
        self,
        tracked: TrackedRequest,
        hits: list[int],
        draft: DraftPlan,
        now: float,
        *,
        num_new: int,
        num_promised: int,
    ) -> list[int]:
        """A waiting request takes a slot and becomes part of the plan.

        Args:
            tracked: mutated.
            hits: cached blocks behind those that it kept; `NULL_BLOCK`: loaded from the host.
            draft: the step being planned.
            now: when.
            num_new: further blocks that it needs at once; they and those of loads can be had.
            num_promised: blocks that it is expected to use in the end.

        Returns:
            Its table.
        """
        self.queue.remove(tracked)
        blocks, tracked.kept = tracked.kept, []
        size = self.limits.block_size
        num_computed = (len(blocks) + len(hits)) * size
        num_loaded = hits.count(NULL_BLOCK) * size
        if blocks:
            del self.keepers[tracked.request_id]
        if hits:
            self.cache.take(tracked.request_id, hits, len(blocks))
            if num_loaded and self.offload is not None:
                hits = self.offload.load(tracked.chain, hits, len(blocks), draft.step_id)
            blocks += hits
        blocks += self.pool.allocate(num_new)
        slot = self.slots.seat(tracked, num_computed, blocks, num_promised)
        params = tracked.request.params
        self.stops.add(slot, params, tracked.num_prompt_tokens, self.limits.max_model_len)
        tracked.state = RequestState.RUNNING
        tracked.wait_reason = WaitReason.NONE
        tracked.num_passed, tracked.pass_blocks = 0, -1
        if not tracked.has_started:
            tracked.has_started = True
            self._num_seatings += 1
            tracked.seat_no = self._num_seatings
            tracked.num_cached_tokens = num_computed
            self.cached_news[tracked.request_id] = num_computed
            self._note_prompt_head(tracked)
        draft.num_recomputed += self.recorder.request_admitted(
            tracked.request_id, slot, num_computed, now, num_loaded
        )
        tracked.key = order_key(tracked, self.settings)
        if self.fair is not None:
            self.fair.seated(tracked, num_computed, len(tracked.token_ids))
        self.prefilling[slot] = tracked
        self.announce(tracked, draft, tracked.token_ids, num_computed, blocks)
        return blocks

    def announce(
        self,
        tracked: TrackedRequest,
        draft: DraftPlan,
        token_ids: Int32,
        num_computed: int,
        blocks: list[int],
    ) -> None:
        """Put a seated request, with its known tokens and its whole table, into the plan."""
        slot = tracked.slot
        draft.added[slot] = AddedRequest(
            slot=slot,
            request_id=tracked.request_id,
            epoch=int(self.slots.epoch[slot]),
            token_ids=token_ids,
            num_prompt_tokens=tracked.num_prompt_tokens,
            num_computed_tokens=num_computed,
            params=tracked.request.params,
            num_emitted_prompt_logprobs=tracked.num_prompt_logprobs,
        )
        draft.note_table(slot, blocks)

    def _unseat(self, leaving: Sequence[TrackedRequest]) -> list[list[int]]:
        """Running requests lose their slots; their blocks, tail first, are still to be given up."""
        seats = []
        for tracked in leaving:
            slot = tracked.slot
            seats.append(slot)
            if self.fair is not None:
                self.fair.leaves_slot(tracked, int(self.slots.total[slot]))
            tracked.last_step = int(self.slots.last_step[slot])
            self.prefilling.pop(slot, None)
        tables = self.slots.unseat(leaving)
        self.stops.remove(seats)
        self.offered.forget(seats)
        self.removed += seats
        self.template = None
        self.is_intake_due = True
        return tables

    def leave_slots(self, leaving: Sequence[TrackedRequest]) -> None:
        """Running requests give up their slots and all their blocks."""
        for tracked, blocks in zip(leaving, self._unseat(leaving), strict=True):
            self.give_up_blocks(blocks, self._user(tracked.last_step))

    def drop_kept(self, tracked: TrackedRequest, num_kept_blocks: int) -> None:
        """A waiting request keeps only its first blocks; a step in flight may still use others."""
        dropped = tracked.kept[num_kept_blocks:][::-1]
        del tracked.kept[num_kept_blocks:]
        if not tracked.kept:
            self.keepers.pop(tracked.request_id, None)
        self.give_up_blocks(dropped, self._user(tracked.last_step))

    def give_up_blocks(self, blocks: list[int], user: InFlight | None) -> None:
        """Release blocks (tail first) of a slot; `user` is the step in flight that uses them."""
        if user is not None:
            self.pool.hold(blocks)
            user.held.extend(blocks)
        self.pool.release(blocks)

    def preempt(self, tracked: TrackedRequest, draft: DraftPlan, num_kept_blocks: int) -> None:
        """Take a running request back to the front of the queue; undo its rows of this step."""
        slot = tracked.slot
        num_kept_tokens = num_kept_blocks * self.limits.block_size
        self.cache.undo(draft.step_id, tracked.request_id, num_kept_tokens)
        draft.drop(slot)
        draft.num_preempted += 1
        computed = self.slots.computed[slot] - self.slots.drafts_in_flight[slot]
        self.recorder.request_preempted(tracked.request_id, int(computed))
        tracked.token_ids = self.slots.known_tokens(slot)
        (blocks,) = self._unseat([tracked])
        if num_kept_blocks:
            tracked.kept = blocks[: -num_kept_blocks - 1 : -1]
            del blocks[-num_kept_blocks:]
            self.keepers[tracked.request_id] = tracked
        self.give_up_blocks(blocks, self._user(tracked.last_step))
        tracked.state = RequestState.PREEMPTED
        tracked.wait_reason = WaitReason.PREEMPTION
        tracked.num_preemptions += 1
        self.queue.push(tracked)
        self.queue.starters.clear()

    def apply_settings(self, settings: EngineSettings) -> None:
        """Put other live settings in force: keys and lanes are made again."""
        self.settings = settings
        self.watermark_blocks = _watermark_blocks(settings, self.limits)
        self.cache.enabled = settings.prefix_caching
        self.fair, before = self._book(settings, self.fair), self.fair
        if self.fair is not None and self.fair is not before:
            self._open_accounts(self.fair)
        self.queue.rebuild(settings, self.lane_cap, self.fair)
        self.queue.starters.clear()
        for tracked in self.slots.tracked:
            if tracked is not None:
                tracked.key = order_key(tracked, settings)
        self.is_intake_due = True

    def _book(self, settings: EngineSettings, before: FairBook | None) -> FairBook | None:
        """The book of policy Fair; the one there is goes on under other terms."""
        if settings.scheduling_policy is not SchedulingPolicy.FAIR:
            return None
        if before is None:
            return FairBook(settings, self.limits.max_slots, self.limits.max_step_tokens)
        before.apply(settings)
        return before

    def _open_accounts(self, book: FairBook) -> None:
        """Requests that came under another policy owe nothing so far."""
        self.settle()
        for tracked in self.requests.values():
            tracked.account, tracked.num_paid_prompt = None, 0
            if tracked.slot >= 0:
                slot = tracked.slot
                tracked.account = book.accounts.of(tracked.request.tenant)
                book.seated(tracked, int(self.slots.computed[slot]), int(self.slots.total[slot]))

    def _note_prompt_head(self, tracked: TrackedRequest) -> None:
        keys = tracked.chain.keys
        num_blocks = min(len(keys), tracked.num_prompt_tokens // self.limits.block_size)
        if num_blocks:
            head = keys[min(num_blocks, HEAD_BLOCKS) - 1]
            self.recorder.prompt_head(head, keys[num_blocks - 1])

    def name_filled(self, rows: Rows, ends: Int32) -> None:
        """Name the block of each row that ends at `ends`; its tokens are computed."""
        slots, size = self.slots, self.limits.block_size
        index = ends // size - 1
        entries = slots.entries(rows, index)
        windows = slots.flat_blocks.take(entries, axis=0)
        blocks = slots.flat_tables[entries].tolist()
        chains = [slots.at(slot).chain for slot in rows.tolist()]
        self.cache.insert_last(chains, index.tolist(), blocks, windows)

    def _user(self, step_id: int) -> InFlight | None:
        """The step, if it is in flight: it uses the blocks of those that it computes for."""
        for record in reversed(self.in_flight):
            if record.plan.step_id == step_id:
                return record
        return None

"""A runner without a model: it obeys step plans literally over a fake paged store.

What it writes for a token is the token and its position; on every row it reads the whole context
back through the block table, and the next token is a hash of what it read. A mixed-up block,
position, token or order therefore changes the output, and `solo_tokens` says what it must be.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core import stop
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import AddedRequest, StepPlan, StepResult, TokenLogprobs
from paceline_engine.core.request import FinishReason, Request

_UNWRITTEN = -1
_POSITION_STEP = 1 << 32
DraftRule = Callable[[list[int], int], Sequence[int]]
"""From a request's tokens and the most that are wanted to its drafts."""


class FakeRunnerFailed(RuntimeError):
    """A step that a test told to fail."""


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64 of each value."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def prefix_hashes(contents: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash of each prefix [0, i] of what stands in the store."""
    return _mix(np.cumsum(_mix(contents.astype(np.uint64)), dtype=np.uint64))


def _contents(token_ids: Sequence[int] | NDArray[np.int32], start: int = 0) -> NDArray[np.int64]:
    tokens = np.asarray(token_ids, dtype=np.int64)
    return tokens + np.arange(start, start + len(tokens), dtype=np.int64) * _POSITION_STEP


def next_token(token_ids: Sequence[int], vocab_size: int) -> int:
    """The token that the fake model says after a prefix."""
    return int(prefix_hashes(_contents(token_ids))[-1] % np.uint64(vocab_size))


def partly_right(vocab_size: int, *, one_wrong_in: int) -> DraftRule:
    """Drafts that go on as the fake model does, until one of so many is wrong; others are short."""

    def propose(tokens: list[int], max_drafts: int) -> list[int]:
        drafts: list[int] = []
        lot = next_token(tokens, 1 << 30)
        for number in range(lot % (max_drafts + 1)):
            token = next_token([*tokens, *drafts], vocab_size)
            is_wrong = (lot + number) % one_wrong_in == 0
            drafts.append((token + 1) % vocab_size if is_wrong else token)
        return drafts

    return propose


def solo_tokens(request: Request, limits: EngineLimits) -> tuple[list[int], FinishReason]:
    """Outputs of a request that runs alone and undisturbed, and how it ends."""
    params = request.params
    known = list(request.prompt_token_ids)
    limit = stop.output_limit(params, len(known), limits.max_model_len)
    outputs: list[int] = []
    while len(outputs) < limit:
        token = next_token(known, limits.vocab_size)
        reason = stop.ending(params, limits.eos_token_ids, limit, len(outputs), token)
        outputs.append(token)
        known.append(token)
        if reason is not None:
            return outputs, reason
    return outputs, FinishReason.LENGTH


@dataclass(slots=True)
class _Slot:
    """What a runner keeps of one request."""

    added: AddedRequest
    tokens: list[int]
    blocks: list[int] = field(default_factory=list)


class Failure(Enum):
    """Where a step fails."""

    EARLY = auto()
    """In `forward`, before its changes were taken over."""
    IN_FORWARD = auto()
    """In `forward`, after that."""
    IN_SAMPLE = auto()
    """In `sample`: later steps may have been launched meanwhile, on top of it."""


class FakeRunner:
    """Same two calls as the real runner. Results wait until `sample` asks, so a test may be late.

    Attributes:
        num_steps, num_tokens: what was computed so far.
        bad_requests: ids whose next sampling row reports an error.
        drafter: what is proposed with each row's tokens; None proposes nothing.
        step_ms: how long a plan takes by its own account; None: nobody measures.
        num_drafts, num_accepted: draft tokens that were computed, and those that held.
        copy_ms: how long the copy of a block to or from the host tier takes, by its own account.
        num_loaded_blocks: blocks that were copied back from there.
    """

    def __init__(self, limits: EngineLimits, drafter: DraftRule | None = None) -> None:
        self.limits = limits
        self.drafter = drafter
        self.step_ms: Callable[[StepPlan], float] | None = None
        self.copy_ms = 0.1
        self.num_loaded_blocks = 0
        self.num_drafts = 0
        self.num_accepted = 0
        self.num_steps = 0
        self.num_tokens = 0
        self.bad_requests: set[int] = set()
        self._store = np.full((limits.num_blocks, limits.block_size), _UNWRITTEN, dtype=np.int64)
        self._host = np.full(
            (limits.num_host_blocks, limits.block_size), _UNWRITTEN, dtype=np.int64
        )
        self._slots: dict[int, _Slot] = {}
        self._results: deque[StepResult | FakeRunnerFailed] = deque()
        self._failure: Failure | None = None
        self._broken: set[int] = set()  # slots whose state is unknown since a failure

    def fail_next(self, failure: Failure) -> None:
        """The next step fails."""
        self._failure = failure

    def forward(self, plan: StepPlan) -> None:
        """Compute one step.

        Raises:
            FakeRunnerFailed: as told by `fail_next`.
        """
        failure, self._failure = self._failure, None
        if failure is not Failure.EARLY:
            self._copy(plan)
            self._take_changes(plan)
        if failure is not None:
            self._broken.update(self._slots)
            error = FakeRunnerFailed(f"step {plan.step_id} failed {failure.name}")
            if failure is not Failure.IN_SAMPLE:
                raise error
            self._results.append(error)
            return
        assert plan.total_tokens <= self.limits.max_step_tokens, "more tokens than buffers"
        assert len(set(plan.slots.tolist())) == len(plan.slots), "a slot has two rows"
        drafts = _drafts_by_row(plan)
        rows = list(
            zip(plan.slots.tolist(), plan.starts.tolist(), plan.num_tokens.tolist(), strict=True)
        )
        for row, (slot, start, count) in enumerate(rows):
            self._write(plan, row, slot, start, count, drafts[row])
        width = 1 + max(map(len, drafts), default=0)
        tokens = np.full((len(rows), width), -1, dtype=np.int32)
        result = StepResult(step_id=plan.step_id, tokens=tokens)
        if plan.max_drafts and self.drafter:
            result.drafts = np.full((len(rows), plan.max_drafts), -1, dtype=np.int32)
        for row, (slot, start, count) in enumerate(rows):
            if slot not in self._broken:
                self._read(plan, row, self._slots[slot], start + count, drafts[row], result)
        if self.step_ms is not None:
            result.device_ms = self.step_ms(plan)
        result.store_ms = len(plan.store_slots) * self.copy_ms
        result.load_ms = len(plan.load_slots) * self.copy_ms
        longest = int(np.count_nonzero(tokens >= 0, axis=1).max(initial=1))
        result.tokens = tokens[:, :longest]
        self.num_steps += 1
        self.num_tokens += plan.total_tokens
        self._results.append(result)

    def do_spare_work(self) -> bool:
        """Nothing may wait."""
        return False

    def sample(self, masks: None = None) -> StepResult:
        """The result of the oldest step that was not answered.

        Raises:
            FakeRunnerFailed: that step failed.
        """
        assert masks is None, "this runner takes no masks"
        result = self._results.popleft()
        if isinstance(result, FakeRunnerFailed):
            raise result
        return result

    def _verify(self, hashes: NDArray[np.uint64], drafts: list[int]) -> list[int]:
        """Accepted drafts and the token behind them; hashes[i] is of what precedes draft i."""
        run: list[int] = []
        for number, prefix in enumerate(hashes):
            run.append(int(prefix % np.uint64(self.limits.vocab_size)))
            if number < len(drafts) and drafts[number] != run[-1]:
                break
        self.num_drafts += len(drafts)
        self.num_accepted += len(run) - 1
        return run

    def _copy(self, plan: StepPlan) -> None:
        """To the host tier, then from there."""
        assert len(set(plan.store_slots.tolist())) == len(plan.store_slots), (
            "a slot is stored twice"
        )
        self._host[plan.store_slots] = self._store[plan.store_blocks]
        self._store[plan.load_blocks] = self._host[plan.load_slots]
        self.num_loaded_blocks += len(plan.load_slots)

    def _take_changes(self, plan: StepPlan) -> None:
        for slot in plan.removed_slots.tolist():
            self._slots.pop(slot, None)
            self._broken.discard(slot)
        for added in plan.added:
            assert added.slot not in self._slots, f"slot {added.slot} is taken"
            self._slots[added.slot] = _Slot(added, added.token_ids.tolist())
        for slot, block in zip(plan.block_slots.tolist(), plan.block_ids.tolist(), strict=True):
            assert 0 < block < self.limits.num_blocks, f"block {block} does not exist"
            self._slots[slot].blocks.append(block)

    def _write(
        self, plan: StepPlan, row: int, slot: int, start: int, count: int, drafts: list[int]
    ) -> None:
        state, size = self._slots[slot], self.limits.block_size
        if slot in self._broken:  # on top of a failed step: writes whatever, where it was told to
            at = np.arange(start, start + count)
            self._store[np.array(state.blocks)[at // size], at % size] = _UNWRITTEN
            return
        assert plan.epochs[row] == state.added.epoch, f"slot {slot} has another epoch"
        assert plan.request_ids[row] == state.added.request_id, f"slot {slot} has another request"
        end = start + count
        tokens = state.tokens + drafts
        assert count > len(drafts), "an empty row"
        assert not drafts or end == len(tokens), f"slot {slot} has drafts of another place"
        assert end <= len(tokens), f"slot {slot} computes tokens that nobody knows"
        assert end <= len(state.blocks) * size, f"slot {slot} computes beyond its blocks"
        assert end <= self.limits.max_model_len, f"slot {slot} drafts beyond the longest request"
        if state.added.params.max_tokens:
            assert plan.samples[row] == (end == len(tokens)), "a row samples wrongly"
        positions = np.arange(start, end)
        table = np.array(state.blocks)
        self._store[table[positions // size], positions % size] = _contents(
            tokens[start:end], start
        )

    def _read(
        self,
        plan: StepPlan,
        row: int,
        state: _Slot,
        context: int,
        drafts: list[int],
        result: StepResult,
    ) -> None:
        contents = self._store[state.blocks].reshape(-1)[:context]
        hashes = prefix_hashes(contents)
        params, added = state.added.params, state.added
        if plan.samples[row]:
            if added.request_id in self.bad_requests:
                result.errors[row] = "the logits are not finite"
            run = self._verify(hashes[context - len(drafts) - 1 :], drafts)
            state.tokens += run
            result.tokens[row, : len(run)] = run
            if params.logprobs is not None:
                first = context - len(drafts) - 1
                result.logprobs[row] = [_logprob(t, hashes[first + i]) for i, t in enumerate(run)]
            if result.drafts is not None and self.drafter:
                proposed = list(self.drafter(state.tokens, plan.max_drafts))
                result.drafts[row, : len(proposed)] = proposed
        if params.prompt_logprobs is not None:
            first, last = int(plan.starts[row]) + 1, min(context, added.num_prompt_tokens - 1)
            result.prompt_logprobs[row] = [
                _logprob(state.tokens[p], hashes[p - 1]) for p in range(first, last + 1)
            ]


def _drafts_by_row(plan: StepPlan) -> list[list[int]]:
    counts = plan.num_drafts
    assert counts.sum() == len(plan.draft_tokens), "drafts that belong to no row"
    assert (plan.samples | (counts == 0)).all(), "drafts in a row that does not sample"
    ends = np.cumsum(counts)
    return [part.tolist() for part in np.split(plan.draft_tokens, ends[:-1])] if len(ends) else []


def _logprob(token: int, prefix: np.uint64) -> TokenLogprobs:
    return TokenLogprobs(token_id=token, logprob=-float(prefix % np.uint64(1000)) / 100, rank=1)


def solo_prompt_logprobs(request: Request) -> list[TokenLogprobs]:
    """What the fake model says of prompt positions 1.. when nothing disturbs it."""
    tokens = request.prompt_token_ids
    hashes = prefix_hashes(_contents(tokens))
    return [_logprob(tokens[p], hashes[p - 1]) for p in range(1, len(tokens))]

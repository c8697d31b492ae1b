"""The step plan: what a runner must do next, as a change against its persistent batch.

A runner keeps, per slot, the token ids, the block table and the sampling parameters. A plan says
what changed and which tokens to compute; what did not change is not in it. Plans are applied in
order of `step_id`; within one plan: stores, loads, removed, added, appended blocks, rows.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core.request import Finished, SamplingParams

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


def _empty() -> Int32:
    return np.empty(0, dtype=np.int32)


@dataclass(slots=True, kw_only=True)
class AddedRequest:
    """A request that takes a slot: new, or back after preemption.

    Not frozen only because that makes it several times slower to make; nobody changes it.

    Attributes:
        slot: free before this plan (or removed by it).
        epoch: rows and results of an older epoch of this slot's request are void.
        token_ids: [prompt + outputs so far] int32; all that is known.
        num_prompt_tokens: how many of them are prompt.
        num_computed_tokens: tokens whose KV is already in the blocks (prefix hit).
        num_emitted_prompt_logprobs: prompt positions whose log-probabilities are already gathered.
    """

    slot: int
    request_id: int
    epoch: int
    token_ids: Int32
    num_prompt_tokens: int
    num_computed_tokens: int
    params: SamplingParams
    num_emitted_prompt_logprobs: int = 0


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """One step. A mutable slots class of arrays because it is made once per step at full rate.

    Attributes:
        step_id: grows by one.
        removed_slots: [r] int32, slots that became free. After a failed step these are all slots,
            also such that the runner knows to be free, and every running request is added again:
            what the runner took over of the failed plan does not matter.
        added: requests that take slots.
        block_slots, block_groups, block_ids: [b] int32 each; block `id` is appended to the table of
            KV group `group` of `slot`, in this order.
        slots: [rows] int32, the rows of the flat batch, each slot at most once.
        starts: [rows] int32, position of the row's first token (`num_computed_tokens` before it).
        num_tokens: [rows] int32 >= 1, tokens computed by the row, its drafts included.
        num_drafts: [rows] int32, how many of them are drafts (the last ones).
        draft_tokens: [sum of num_drafts] int32, row by row.
        samples: [rows] bool, the row reaches the end of the known tokens and yields a token.
        epochs: [rows] int32, copied from the slot's request.
        request_ids: [rows] int64.
        max_drafts: most drafts that the runner may propose with the result for each row that
            yields; 0: none is wanted, so nothing is spent on proposing.
        store_blocks, store_slots: [s] int32 each; KV block `block`, as it is before this step
            writes anything, is copied to `slot` of the host tier. No slot stands there twice.
        load_slots, load_blocks: [l] int32 each; after the stores and before anything else writes
            or reads, what `slot` of the host tier holds is copied to KV block `block`.
    """

    step_id: int
    removed_slots: Int32 = field(default_factory=_empty)
    added: tuple[AddedRequest, ...] = ()
    block_slots: Int32 = field(default_factory=_empty)
    block_groups: Int32 = field(default_factory=_empty)
    block_ids: Int32 = field(default_factory=_empty)
    slots: Int32
    starts: Int32
    num_tokens: Int32
    num_drafts: Int32
    draft_tokens: Int32 = field(default_factory=_empty)
    samples: NDArray[np.bool_]
    epochs: Int32
    request_ids: Int64
    max_drafts: int = 0
    store_blocks: Int32 = field(default_factory=_empty)
    store_slots: Int32 = field(default_factory=_empty)
    load_slots: Int32 = field(default_factory=_empty)
    load_blocks: Int32 = field(default_factory=_empty)

    @property
    def total_tokens(self) -> int:
        """Tokens that this step computes."""
        return int(self.num_tokens.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the model's distribution before any penalty or mask.

    Attributes:
        token_id, logprob, rank: the token that stands there; rank 1 is the most likely.
        top_ids, top_logprobs: the n best, best first; as many as were asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(slots=True, kw_only=True)
class StepResult:
    """What a runner answers to a plan. Row order is the plan's.

    Attributes:
        tokens: [rows, width] int32; the accepted drafts of a row and the token sampled behind
            them, then -1; all -1 in rows that do not sample.
        logprobs: row -> one entry per token of that row.
        prompt_logprobs: row -> entries for the prompt positions [starts + 1, starts + num_tokens]
            that lie inside the prompt (position p is predicted by p - 1).
        errors: row -> why this row alone failed (NaN logits); its request ends with ERROR.
        drafts: [rows, at most max_drafts] int32, proposals for what follows the row's tokens, -1
            behind them; None: there are none.
        host_ms, device_ms: where the time went, for the flight recorder.
        propose_ms: part of host_ms that the proposer of drafts took.
        store_ms, load_ms: what copies to the host tier and back took; neither of the other two has
            it in it.
    """

    step_id: int
    tokens: Int32
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    drafts: Int32 | None = None
    host_ms: float = 0.0
    device_ms: float = 0.0
    propose_ms: float = 0.0
    store_ms: float = 0.0
    load_ms: float = 0.0


@dataclass(slots=True, kw_only=True)
class StepOutputs:
    """What a step gave to the clients: one message per step, not one per request.

    Attributes:
        request_ids: [m] int64, requests that got tokens.
        tokens: [m, width] int32, -1 padded; only tokens that count.
        logprobs, prompt_logprobs: request id -> entries, for those that asked.
        finished: requests that ended in this step, after their last tokens.
        num_cached_tokens: request id -> cached prompt tokens, once, when it was first admitted.
    """

    step_id: int
    request_ids: Int64
    tokens: Int32
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    finished: list[Finished] = field(default_factory=list)
    num_cached_tokens: dict[int, int] = field(default_factory=dict)

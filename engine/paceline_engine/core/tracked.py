"""What the scheduler knows of one request, from its arrival to its end."""

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core.accounts import Account
from paceline_engine.core.prefix_cache import HashChain
from paceline_engine.core.request import Request

Int32 = NDArray[np.int32]
OrderKey = tuple[float, ...]


class RequestState(StrEnum):
    """Where a request is; the values are what the admin API shows."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Waiting again, after it had run."""
    FINISHED = "finished"


class WaitReason(StrEnum):
    """Why a request waits; decided by admission, shown by the admin API and counted."""

    NONE = ""
    NOT_TRIED = "NotTried"
    """Arrived after the last plan, or somebody before it in the queue waits."""
    SEQUENCE_LIMIT = "SequenceLimit"
    TOKEN_BUDGET = "TokenBudget"  # noqa: S105 - a reason, no secret
    KV_BLOCKS = "KVBlocks"
    PREEMPTION = "Preemption"
    """A step that preempts admits nobody."""
    STATIC_BATCH = "StaticBatch"
    TENANT_LIMIT = "TenantLimit"
    """Its tenant runs as many as it may, or has had its share of the step."""


class TrackedRequest:
    """Mutable, with slots: the planner touches it whenever something about it changes.

    While a request runs, its numbers live in the arrays of `slots.Slots` under `slot`; while it
    waits, `token_ids` holds all its known tokens, and `kept` the blocks that preemption left it.

    Attributes:
        request: what was asked for; request_id and num_prompt_tokens are read from it once.
        seq: order of arrival; unique.
        limit: total tokens at which it ends with LENGTH.
        key: place in the order of its policy, smaller first (see `queues.order_key`).
        seat_no: order of the first admission; who runs or was preempted is ordered by it.
        token_ids: prompt and outputs; while it runs only those it had at its admission.
        kept: computed, full blocks from its start on that it still owns while it waits.
        last_step: the newest step that computed for it before it was preempted.
        chain: keys of its full blocks; outlives preemption.
        num_cached_tokens: prompt tokens found in the prefix cache at the first admission.
        num_prompt_logprobs: prompt positions 1..n whose log-probabilities are gathered.
        num_passed: how many requests behind it were admitted while it did not fit.
        pass_blocks: KV blocks that those who pass may still take; the rest is kept for it.
        account: its tenant's, under policy Fair.
        num_paid_prompt: prompt tokens that the tenant paid for, or found in the cache.
    """

    __slots__ = (
        "account",
        "chain",
        "has_started",
        "kept",
        "key",
        "last_step",
        "limit",
        "num_cached_tokens",
        "num_paid_prompt",
        "num_passed",
        "num_preemptions",
        "num_prompt_logprobs",
        "num_prompt_tokens",
        "pass_blocks",
        "request",
        "request_id",
        "seat_no",
        "seq",
        "slot",
        "state",
        "token_ids",
        "wait_reason",
    )

    def __init__(self, request: Request, seq: int, limit: int, chain: HashChain) -> None:
        self.request = request
        self.request_id = request.request_id
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.seq = seq
        self.limit = limit
        self.chain = chain
        # Much faster than array(), which looks at all values first.
        self.token_ids: Int32 = np.fromiter(
            request.prompt_token_ids, dtype=np.int32, count=self.num_prompt_tokens
        )
        self.state = RequestState.WAITING
        self.wait_reason = WaitReason.NOT_TRIED
        self.key: OrderKey = (0.0, 1, seq)
        self.kept: list[int] = []
        self.last_step = -1
        self.slot = -1
        self.seat_no = -1
        self.has_started = False
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_prompt_logprobs = 0
        self.num_passed = 0
        self.pass_blocks = -1
        self.account: Account | None = None
        self.num_paid_prompt = 0

    @property
    def num_waiting_tokens(self) -> int:
        """Known tokens of a waiting request: what its admission has to compute or find cached."""
        return len(self.token_ids)

    @property
    def max_hit_tokens(self) -> int:
        """How many tokens may come from the prefix cache, plus one.

        Prompt positions whose log-probabilities are asked for must be computed: a cached position
        has no logits. Position p is predicted by computing p - 1.
        """
        return self.max_hits(len(self.token_ids))

    def max_hits(self, num_tokens: int) -> int:
        """The same for a request that has so many tokens."""
        if self.request.params.prompt_logprobs is None:
            return num_tokens
        if self.num_prompt_logprobs >= self.num_prompt_tokens - 1:
            return num_tokens
        return self.num_prompt_logprobs + 1

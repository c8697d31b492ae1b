"""Whom to let in: how much a request will need, how fast the queue drains, when to slow down.

Small learners and rules; `intake` walks the queue with them. Time comes in as an argument.
"""

import math
from dataclasses import dataclass

from paceline_engine.core.output_tail import OutputTail
from paceline_engine.core.request import Refusal

MAX_PASSES = 16
"""How many smaller requests may be admitted past a head that does not fit."""
MAX_LOOKS = 32
"""How many requests behind such a head are looked at in one step."""
_PRIOR_TOKENS = 64.0
_SLOWEST_WEIGHT = 1 / 32


class ExpectedOutput:
    """Learns from finished requests how many tokens an output will have.

    Two moving means, of the share of max_tokens that was used and of the length itself; the smaller
    forecast counts, since clients that leave max_tokens out ask for everything that fits.

    Attributes:
        tail: how long outputs get that have some length already.
    """

    def __init__(self) -> None:
        self._share = 1.0
        self._tokens = _PRIOR_TOKENS
        self._seen = 0
        self.tail = OutputTail()

    def observe(self, num_output_tokens: int, max_output_tokens: int) -> None:
        """A request ended by itself after so many tokens of those it was allowed."""
        if max_output_tokens <= 0:
            return
        self._seen += 1
        weight = max(_SLOWEST_WEIGHT, 1 / (self._seen + 1))
        self._share += weight * (num_output_tokens / max_output_tokens - self._share)
        self._tokens += weight * (num_output_tokens - self._tokens)
        self.tail.observe(num_output_tokens)

    def forecast(self, num_output_tokens: int, max_output_tokens: int) -> int:
        """Tokens still to come for a request that has `num_output_tokens` already."""
        expected = math.ceil(min(self._share * max_output_tokens, self._tokens))
        return max(0, min(max_output_tokens, expected) - num_output_tokens)


class Brake:
    """Slows admissions down after preemptions: they mean that too much was let in.

    Each preempting step raises the level, each `_CALM_STEPS` steps without one lower it.
    """

    _CALM_STEPS = 32
    _MAX_LEVEL = 4

    def __init__(self) -> None:
        self._level = 0
        self._calm = 0

    @property
    def is_on(self) -> bool:
        """At most one new request a step is admitted."""
        return self._level > 0

    def extra_blocks(self, num_running: int) -> int:
        """Blocks that must stay free beyond the watermark."""
        return self._level * ((num_running + 1) // 2)

    def step(self, *, has_preempted: bool) -> None:
        """Tell what the step that was just planned did."""
        if has_preempted:
            self._level = min(self._level + 1, self._MAX_LEVEL)
            self._calm = 0
        elif self._level:
            self._calm += 1
            if self._calm == self._CALM_STEPS:
                self._level -= 1
                self._calm = 0


class DrainRate:
    """Requests and tokens a second that leave the queue, measured over a sliding half minute."""

    _WINDOW_S = 30.0

    def __init__(self) -> None:
        self._since: float | None = None
        self._requests = 0.0
        self._tokens = 0.0

    def admitted(self, num_tokens: int, now: float) -> None:
        """One request left the queue with so many tokens."""
        self._age(now)
        self._requests += 1
        self._tokens += num_tokens

    def retry_after_s(self, num_requests: int, num_tokens: int, now: float) -> int:
        """Seconds until so many requests and tokens have drained, within [1, 300]."""
        self._age(now)
        seconds = max(now - (self._since if self._since is not None else now), 1.0)
        waits = [
            wanted * seconds / drained
            for wanted, drained in ((num_requests, self._requests), (num_tokens, self._tokens))
            if drained > 0
        ]
        return max(1, min(300, math.ceil(max(waits)))) if waits else 1

    def _age(self, now: float) -> None:
        if self._since is None:
            self._since = now
        elif now - self._since > self._WINDOW_S:
            # Forget all but the last window in one go: cheap, and recent enough for a hint.
            factor = self._WINDOW_S / 2 / (now - self._since)
            self._requests *= factor
            self._tokens *= factor
            self._since = now - self._WINDOW_S / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoad:
    """What waits already, without those that start at once, and what the queue may hold."""

    num_waiting: int
    num_waiting_tokens: int
    max_requests: int
    max_tokens: int


def refuse_when_full(
    load: QueueLoad, num_tokens: int, drain: DrainRate, now: float
) -> Refusal | None:
    """503 with Retry-After when one more waiting request of `num_tokens` would be too many.

    Retry-After is the time in which half of the queue drains: all of it is pessimistic, one request
    brings a stampede.
    """
    is_over_tokens = load.num_waiting_tokens + num_tokens > load.max_tokens
    if load.num_waiting < load.max_requests and not is_over_tokens:
        return None
    retry = drain.retry_after_s(
        max(1, load.num_waiting // 2), max(num_tokens, load.num_waiting_tokens // 2), now
    )
    what = (
        f"{load.num_waiting_tokens} prompt tokens wait and this request has {num_tokens}, "
        f"queue.maxTokens is {load.max_tokens}"
        if is_over_tokens
        else f"{load.num_waiting} requests wait, queue.maxRequests is {load.max_requests}"
    )
    return Refusal(status=503, message=f"the queue is full: {what}", retry_after_s=retry)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePart:
    """What a tenant has of the queue, and what it may have whatever the others do.

    Attributes:
        tenant: its name.
        num_waiting, num_waiting_tokens: of its requests.
        share: its weight over that of all tenants that wait, in (0, 1].
    """

    tenant: str
    num_waiting: int
    num_waiting_tokens: int
    share: float


OVER_PART = 429
"""Status for a tenant that has its part of a full queue."""
_MOST_OVER = 2


def refuse_over_part(
    refusal: Refusal, load: QueueLoad, part: QueuePart, num_tokens: int
) -> Refusal | None:
    """The queue is full: 429 for who filled it, while others still get in, up to twice its size.

    Args:
        refusal: what everybody would be told without tenants.
        load: of the queue.
        part: the tenant's.
        num_tokens: of the request.
    """
    is_over = part.num_waiting >= part.share * load.max_requests or (
        part.num_waiting_tokens + num_tokens > part.share * load.max_tokens
    )
    if part.num_waiting and is_over:
        return Refusal(
            status=OVER_PART,
            message=f"tenant {part.tenant} has {part.num_waiting} waiting requests with "
            f"{part.num_waiting_tokens} prompt tokens, which is its part of the queue; wait for "
            "answers before you send more",
            retry_after_s=refusal.retry_after_s,
        )
    is_beyond = load.num_waiting >= _MOST_OVER * load.max_requests or (
        load.num_waiting_tokens + num_tokens > _MOST_OVER * load.max_tokens
    )
    return refusal if is_beyond else None


def refuse_misfit(num_prompt_tokens: int, max_tokens: int, max_model_len: int) -> Refusal | None:
    """400 for a request that could never run, so that it is not queued for ever."""
    longest = max_model_len - (1 if max_tokens else 0)
    if num_prompt_tokens <= longest:
        return None
    return Refusal(
        status=400,
        message=f"the prompt has {num_prompt_tokens} tokens, this model serves at most "
        f"{max_model_len} tokens of prompt and output together; shorten the prompt",
        param="prompt",
    )

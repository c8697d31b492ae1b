"""Requests that ended, as a replay needs them: when they came, how long they were, what they share.

Kept beside the steps of the flight recorder. It holds no token: of a prompt it keeps its length and
the keys of its full blocks, of which `shared_prefixes` makes "the first n tokens are those of that
other request".
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RECORDING_VERSION = 1
"""Of the form of a recording, these columns and those of steps: who writes and who reads one."""
MAX_REQUESTS = 8192
MAX_KEYS = 65_536
"""Keys of all requests together; a request with more of them pushes others out."""

COLUMNS = (
    "arrival_s",
    "num_prompt_tokens",
    "num_output_tokens",
    "max_tokens",
    "num_cached_tokens",
    "num_preemptions",
    "first_token_s",
    "end_s",
    "reason",
    "priority",
    "tenant",
    "generation",
)


@dataclass(slots=True, kw_only=True)
class EndedRequest:
    """One request that has ended. Slots, not frozen: one is made at each end, at full rate.

    Attributes:
        arrival_s, first_token_s, end_s: on the engine's monotonic clock; NaN without a token.
        reason: why it ended (`request.FinishReason`).
        generation: of the settings in force when it ended.
        keys: of its full blocks that had a name, prompt and output; shared, not to be changed.
    """

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    first_token_s: float
    end_s: float
    reason: str
    priority: int
    tenant: str
    generation: int
    keys: Sequence[bytes]


class RequestLog:
    """The newest ended requests, in order of their end. Mutable, bounded: the recorder owns it."""

    __slots__ = ("_num_keys", "_requests")

    def __init__(self) -> None:
        self._requests: deque[EndedRequest] = deque()
        self._num_keys = 0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: EndedRequest) -> None:
        """Keep a request; the oldest ones make room."""
        kept = self._requests
        kept.append(request)
        self._num_keys += len(request.keys)
        while len(kept) > MAX_REQUESTS or (self._num_keys > MAX_KEYS and len(kept) > 1):
            self._num_keys -= len(kept.popleft().keys)

    def columns(self, block_size: int) -> dict[str, list[Any]]:
        """Name -> values of all requests, in order of arrival; and whose prefix each shares.

        Besides `COLUMNS`: `prefix_of`, the index of an earlier request, -1 for none, and
        `num_prefix_tokens`, how many tokens of that one's prompt and output are the first ones of
        this prompt (whole blocks).
        """
        requests = sorted(self._requests, key=lambda request: request.arrival_s)
        columns: dict[str, list[Any]] = {
            name: [getattr(request, name) for request in requests] for name in COLUMNS
        }
        shared = shared_prefixes(
            [request.keys for request in requests],
            [request.num_prompt_tokens // block_size for request in requests],
        )
        columns["prefix_of"] = [index for index, _ in shared]
        columns["num_prefix_tokens"] = [count * block_size for _, count in shared]
        return columns


def shared_prefixes(
    chains: Sequence[Sequence[bytes]], num_prompt_blocks: Sequence[int]
) -> list[tuple[int, int]]:
    """The longest run of first blocks that each chain's prompt has in common with an earlier chain.

    A key names its whole prefix, so the last known key of a prompt says it all.

    Args:
        chains: keys of full blocks, prompt and output.
        num_prompt_blocks: how many of them are the prompt's.

    Returns:
        For each chain (index of the earlier one, blocks), (-1, 0) if there is none.
    """
    first_with: dict[bytes, int] = {}
    found: list[tuple[int, int]] = []
    for index, (keys, num_blocks) in enumerate(zip(chains, num_prompt_blocks, strict=True)):
        owner, count = -1, 0
        for position in range(min(num_blocks, len(keys)) - 1, -1, -1):
            known = first_with.get(keys[position])
            if known is not None:
                owner, count = known, position + 1
                break
        found.append((owner, count))
        for key in keys:
            first_with.setdefault(key, index)
    return found

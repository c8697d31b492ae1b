"""Requests in the queue that only pass through it: seat and blocks are free for them already."""


class Starters:
    """What the next steps will take out of the queue. Mutable; the queue owns it.

    They do not count against `queueMaxRequests` and `queueMaxTokens`. A walk over the queue that
    leaves somebody without a seat or blocks clears it: who is still there waits.

    Attributes:
        num_blocks: KV blocks that are spoken for by them.
        num_tokens: their known tokens.
    """

    def __init__(self) -> None:
        self.num_blocks = 0
        self.num_tokens = 0
        self._taken: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def add(self, request_id: int, num_blocks: int, num_tokens: int) -> None:
        """A new request finds what it needs."""
        self._taken[request_id] = num_blocks, num_tokens
        self.num_blocks += num_blocks
        self.num_tokens += num_tokens

    def discard(self, request_id: int) -> None:
        """A request left the queue, whether it is one of these or not."""
        num_blocks, num_tokens = self._taken.pop(request_id, (0, 0))
        self.num_blocks -= num_blocks
        self.num_tokens -= num_tokens

    def clear(self) -> None:
        """Whoever is in the queue waits."""
        self._taken.clear()
        self.num_blocks = self.num_tokens = 0

"""How alike prompts are: was a prompt's head seen before under another continuation?

Such requests could share prefix blocks; if the cache hits less than this share, prompts are
reordered, spread over engines, or evicted too early.
"""

from collections import OrderedDict

_HEADS_KEPT = 4096
_MANY = b""  # more than one continuation was seen


class PromptHeads:
    """The latest heads and what followed them. Mutable, bounded: the recorder owns it."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, bytes] = OrderedDict()

    def is_shared(self, head: bytes, whole: bytes) -> bool:
        """Note a prompt by digests of its head and of all of it; was the head shared before."""
        before = self._seen.get(head)
        if before is None:
            self._seen[head] = whole
            if len(self._seen) > _HEADS_KEPT:
                self._seen.popitem(last=False)
            return False
        self._seen.move_to_end(head)
        if before == whole:
            return False
        self._seen[head] = _MANY
        return True

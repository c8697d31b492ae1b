"""The pool of KV blocks: who refers to a block, which is free, which free one is reused next.

Every block but the null block 0 is in exactly one state:

- *active*: at least one reference;
- *held*: no reference, but a step in flight (or a copy) still uses it;
- *cached*: neither, and its content is known under a key (a prefix hash), so a hit can revive it;
- *free*: neither, and its content is worthless.

Allocation takes free blocks first, then cached ones, least recently used first. All operations are
O(1) per block. State lives in plain lists and dicts, not numpy: blocks are handled a few at a time,
where a list access is three times cheaper than a numpy scalar, and a batch of single blocks (the
decode path) is one slice of the free stack. Free blocks without content need no order, so they are
a stack; cached ones are an `OrderedDict`, which is the intrusive doubly linked list in C.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core.errors import OutOfBlocks

NULL_BLOCK = 0


class BlockPool:
    """References, holds, keys and free lists of all KV blocks. Mutable: the scheduler owns it.

    Block ids passed in are plain ints (a numpy table goes in by `.tolist()`); the null block is
    accepted everywhere and ignored. "Tail first" is the caller's order: blocks released earlier
    are evicted earlier, so a caller passes the end of a table first.

    Attributes:
        on_evict: told of blocks and the keys of what they still hold when they are given away.
    """

    __slots__ = (
        "_by_key",
        "_cached",
        "_free",
        "_held",
        "_holds",
        "_keys",
        "_refs",
        "num_blocks",
        "on_evict",
    )

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks must be >= 2 (block 0 is null), got {num_blocks}")
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._keys: dict[int, bytes] = {}  # of blocks whose content is known
        self._by_key: dict[bytes, int] = {}
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._holds: dict[int, int] = {}  # block -> holds on it
        self._held = 0  # blocks with holds and no references
        self.on_evict: Callable[[list[int], list[bytes]], None] | None = None

    # -- counting ----------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks that come back when the steps in flight are applied: wait, do not preempt."""
        return self._held

    def usage(self) -> tuple[int, int, int, int]:
        """(active, cached, free, held); they sum up to `num_blocks` - 1."""
        cached, free = len(self._cached), len(self._free)
        active = self.num_blocks - 1 - cached - free - self._held
        return active, cached, free, self._held

    def is_in_use(self, block: int) -> bool:
        """Referenced or held: not to be allocated."""
        return self._refs[block] > 0 or block in self._holds

    def num_gained(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` nobody else refers to: what releasing them would free."""
        refs = self._refs
        return sum(1 for block in blocks if block and refs[block] == 1)

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` nobody uses: what acquiring them takes from those to allocate."""
        return sum(1 for block in blocks if block and not self.is_in_use(block))

    # -- references --------------------------------------------------------------------------

    def allocate(self, n: int) -> list[int]:
        """Take `n` blocks with one reference each; their old content is forgotten.

        Raises:
            OutOfBlocks: fewer than `n` can be had; nothing was taken.
        """
        free = self._free
        if n > len(free):
            if n > len(free) + len(self._cached):
                raise OutOfBlocks(n, self.num_free)
            blocks = free[::-1]
            free.clear()
            blocks += self._evict(n - len(blocks))
        elif n > 0:
            blocks = free[: -n - 1 : -1]
            del free[-n:]
        else:
            return []
        refs = self._refs
        for block in blocks:
            refs[block] = 1
        return blocks

    def allocate_many_one(self, n: int) -> NDArray[np.int32]:
        """`allocate` for `n` requests that need one block each: [n] int32.

        Raises:
            OutOfBlocks: fewer than `n` can be had; nothing was taken.
        """
        return np.array(self.allocate(n), dtype=np.int32)

    def acquire(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block: a prefix hit. Cached blocks become active."""
        refs = self._refs
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            count = refs[block]
            refs[block] = count + 1
            if count == 0:
                if block in self._holds:
                    self._held -= 1
                else:
                    assert block in self._cached, f"block {block} is free, it holds nothing to hit"
                    del self._cached[block]

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference of each block, in this order (tail of a table first)."""
        refs, holds, keys, cached = self._refs, self._holds, self._keys, self._cached
        for block in blocks:
            count = refs[block]
            if count == 1 and not (holds and block in holds):
                refs[block] = 0
                if block in keys:
                    cached[block] = None
                else:
                    self._free.append(block)
            elif block:
                assert count > 0, f"block {block} released more often than referenced"
                refs[block] = count - 1
                self._held += count == 1

    def hold(self, blocks: Sequence[int]) -> None:
        """Keep blocks from reuse whatever their references do, until `unhold`.

        For blocks that a step in flight reads or writes while their request gives them up: hold,
        then release. Held blocks must be referenced or held already.
        """
        holds = self._holds
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            assert self.is_in_use(block), f"block {block} is not in use"
            holds[block] = holds.get(block, 0) + 1

    def unhold(self, blocks: Sequence[int]) -> None:
        """Undo one `hold` of each block; what nobody refers to goes back, in this order."""
        holds = self._holds
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            count = holds[block] - 1
            if count:
                holds[block] = count
                continue
            del holds[block]
            if self._refs[block] == 0:
                self._held -= 1
                self._put_back(block)

    # -- keys --------------------------------------------------------------------------------

    def find(self, key: bytes) -> int | None:
        """The block whose content has this key."""
        return self._by_key.get(key)

    def set_key(self, block: int, key: bytes) -> bool:
        """Name the content of an active or held block.

        Returns:
            False if another block has that content already, or this block has a key: the first
            one keeps it, and a second copy is simply reused first.
        """
        assert self.is_in_use(block), f"block {block} is not in use"
        if key in self._by_key or block in self._keys:
            return False
        self._by_key[key] = block
        self._keys[block] = key
        return True

    def set_keys(self, blocks: Sequence[int], keys: Sequence[bytes]) -> Sequence[int]:
        """`set_key` for many blocks that are active or held; those that were named."""
        by_key, own = self._by_key, self._keys
        new = dict(zip(keys, blocks, strict=True))
        if (
            len(new) == len(keys)
            and by_key.keys().isdisjoint(new)
            and own.keys().isdisjoint(blocks)
        ):
            by_key.update(new)  # mostly: no Python for each
            own.update(zip(blocks, keys, strict=True))
            return blocks
        named = []
        for block, key in zip(blocks, keys, strict=True):
            if block not in own and key not in by_key:
                by_key[key] = block
                own[block] = key
                named.append(block)
        return named

    def clear_key(self, block: int) -> None:
        """The content of a block is not what its key says (any more); unknown keys are no error."""
        key = self._keys.pop(block, None)
        if key is None:
            return
        del self._by_key[key]
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)

    def clear_keys(self) -> int:
        """Forget all keys, active blocks included; returns how many cached blocks became free."""
        forgotten = len(self._cached)
        self._free.extend(self._cached)
        self._cached.clear()
        self._keys.clear()
        self._by_key.clear()
        return forgotten

    def _put_back(self, block: int) -> None:
        if block in self._keys:
            self._cached[block] = None
        else:
            self._free.append(block)

    def _evict(self, n: int) -> list[int]:
        cached, keys, by_key = self._cached, self._keys, self._by_key
        evicted = [cached.popitem(last=False)[0] for _ in range(n)]
        forgotten = [keys.pop(block) for block in evicted]
        for key in forgotten:
            del by_key[key]
        if self.on_evict is not None:
            self.on_evict(evicted, forgotten)
        return evicted

    # -- invariants --------------------------------------------------------------------------

    def check(
        self, expected_refs: Mapping[int, int], expected_holds: Mapping[int, int] | None = None
    ) -> None:
        """Verify every invariant, for tests.

        Args:
            expected_refs: block -> how many tables it is in; absent means 0.
            expected_holds: block -> holds on it, if the caller knows.

        Raises:
            AssertionError: one does not hold.
        """
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is in the free list twice"
        assert not free & cached, "a block is free and cached"
        assert NULL_BLOCK not in free | cached, "the null block is allocatable"
        held = {block for block in self._holds if self._refs[block] == 0}
        assert len(held) == self._held, f"{len(held)} held blocks, counted {self._held}"
        assert all(count > 0 for count in self._holds.values()), "an empty hold is kept"
        if expected_holds is not None:
            assert self._holds == dict(expected_holds), "holds differ"
        for block in range(1, self.num_blocks):
            refs, key = self._refs[block], self._keys.get(block)
            assert refs == expected_refs.get(block, 0), (
                f"block {block} has {refs} references, tables have {expected_refs.get(block, 0)}"
            )
            idle = block in free or block in cached
            assert idle == (refs == 0 and block not in self._holds), f"block {block} is lost"
            assert key is None or self._by_key.get(key) == block, f"key of block {block} is stale"
            if idle:
                assert (key is None) == (block in free), f"block {block} is in the wrong list"
        assert self._refs[NULL_BLOCK] == 0, "the null block has references"
        assert len(self._by_key) == len(self._keys), "a key is lost"
        assert sum(self.usage()) == self.num_blocks - 1, "blocks do not add up"

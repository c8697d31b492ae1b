"""The prefix cache: which full blocks of KV are known under which chain of tokens.

A full block's key is SHA-256 over its parent's key and its tokens; the first parent is a digest of
the engine's root (model, dtypes, layout) and of the request's extras, each tagged by its kind, so
an adapter named X and a salt X never meet. A key therefore names the whole prefix, and a 256-bit
digest makes a collision a matter of belief.

Blocks of known tokens get their key when the step that fills them is *planned* (they are then
pending): in every layer all rows' KV is written before any row's attention, and a plan once made
always runs, so a hit on a pending block in the same or a later step reads what was computed. A
failed step withdraws its pending keys and names everybody who had hit them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core.block_pool import BlockPool
from paceline_engine.core.digest import sha256

_ROOTS_KEPT = 1024


def _root(engine: bytes, extras: tuple[tuple[str, str], ...]) -> bytes:
    parts = [b"paceline-prefix-1"]
    named = [(kind.encode(), value.encode()) for kind, value in extras]
    for kind, value in ((b"root", engine), *named):
        for data in (kind, value):
            parts += [len(data).to_bytes(8, "little"), data]
    return sha256(b"".join(parts)).digest()


@dataclass(slots=True)
class HashChain:
    """Keys of one request's full blocks, in order. Mutable: grows with the request's tokens.

    A chain outlives preemption: tokens that are known never change.

    Attributes:
        request_id: owner of what is inserted under this chain.
        root: parent of the first block: engine root and extras.
        keys: key of full block i.
    """

    request_id: int
    root: bytes
    keys: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _PendingStep:
    """What one planned step is going to fill: block -> owner, and who relies on whom."""

    owners: dict[int, int] = field(default_factory=dict)
    followers: dict[int, dict[int, int]] = field(default_factory=dict)
    """Owner -> follower -> tokens of the follower before the first block it relies on."""


class PrefixCache:
    """Lookup and insertion by content over a `BlockPool`. The scheduler owns it.

    Args:
        num_withheld: known blocks at the end of a run that are no hit, because something in them
            depends on the token behind them.

    Attributes:
        enabled: off means nothing hits and nothing is inserted; what is cached stays valid.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        root: bytes,
        *,
        enabled: bool = True,
        num_withheld: int = 0,
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.enabled = enabled
        self._num_withheld = num_withheld
        self._block = np.dtype((np.void, 4 * block_size))
        self._root = root
        self._roots: dict[tuple[tuple[str, str], ...], bytes] = {}  # by extras, with their kinds
        self._pending: dict[int, _PendingStep] = {}  # by step id, oldest first

    # -- chains ------------------------------------------------------------------------------

    def chain(
        self, request_id: int, *, adapter: str = "", salt: str = "", tenant: str = ""
    ) -> HashChain:
        """An empty chain for one request; equal extras share blocks, others never do."""
        extras: tuple[tuple[str, str], ...] = (("adapter", adapter), ("salt", salt))
        if tenant:
            extras = (*extras, ("tenant", tenant))
        root = self._roots.get(extras)
        if root is None:
            if len(self._roots) >= _ROOTS_KEPT:
                self._roots.clear()
            root = self._roots[extras] = _root(self._root, extras)
        return HashChain(request_id, root)

    def extend(self, chain: HashChain, token_ids: NDArray[np.int32]) -> None:
        """Add the keys of all full blocks of `token_ids` that the chain does not have yet.

        Args:
            chain: mutated.
            token_ids: all known tokens of the request, never drafts; a longer run of what the
                chain was extended with before.
        """
        size, keys = self.block_size, chain.keys
        start, end = len(keys), len(token_ids) // size
        if start >= end:
            return
        key = keys[-1] if keys else chain.root
        for tokens in self._blocks_of(token_ids[start * size : end * size]):
            key = sha256(key + tokens).digest()
            keys.append(key)

    def _blocks_of(self, token_ids: NDArray[np.int32]) -> list[bytes]:
        """Tokens of whole blocks as their bytes, little-endian."""
        tokens: list[bytes] = (
            np.ascontiguousarray(token_ids, dtype="<i4").view(self._block).tolist()
        )
        return tokens

    # -- hits --------------------------------------------------------------------------------

    def lookup(self, chain: HashChain, num_tokens: int, start: int = 0) -> list[int]:
        """The longest run of known blocks, but for those withheld; takes no reference.

        Whole blocks only and at most `num_tokens` - 1 tokens, so that the last token is computed
        and yields logits.

        Args:
            chain: extended with the request's tokens.
            num_tokens: tokens of the request so far (T), or the last position of which a hit is
                allowed, plus one.
            start: entry of the table from which on blocks are looked for; it has those before.
        """
        if not self.enabled:
            return []
        find = self.pool.find
        blocks: list[int] = []
        for key in chain.keys[start : max(0, num_tokens - 1) // self.block_size]:
            block = find(key)
            if block is None:
                break
            blocks.append(block)
        return self.usable(blocks)

    def usable(self, known: list[int]) -> list[int]:
        """A run of known blocks without those at its end that are withheld."""
        return known[: max(0, len(known) - self._num_withheld)]

    def take(self, request_id: int, blocks: Sequence[int], start: int = 0) -> None:
        """Acquire the hit `blocks` for a request, noting on whose pending blocks it relies.

        `start` is the entry of its table at which they begin.

        They may be its own, if it was preempted while the step that fills them is in flight.
        """
        self.pool.acquire(blocks)
        for pending in self._pending.values():
            for index, block in enumerate(blocks, start):
                owner = pending.owners.get(block)
                if owner is not None:
                    followers = pending.followers.setdefault(owner, {})
                    followers.setdefault(request_id, index * self.block_size)

    # -- insertion ---------------------------------------------------------------------------

    def insert(
        self, chain: HashChain, index: int, blocks: Sequence[int], *, step_id: int | None
    ) -> None:
        """Name the content of table entries [index, index + len(blocks)).

        Args:
            chain: already extended over these entries.
            index: first entry of the table.
            blocks: the table's blocks there.
            step_id: the step being planned that fills them (pending until it is confirmed); None
                if they are computed already.
        """
        if not self.enabled:
            return
        named = self.pool.set_keys(blocks, chain.keys[index : index + len(blocks)])
        if step_id is None or not named:
            return
        owner = chain.request_id
        pending = self._pending.get(step_id)
        if pending is None:
            pending = self._pending[step_id] = _PendingStep()
        pending.owners.update(dict.fromkeys(named, owner))

    def insert_loaded(
        self, chain: HashChain, indices: Sequence[int], blocks: Sequence[int], step_id: int
    ) -> None:
        """Name blocks that the step being planned loads from the host, before it computes.

        They are pending; should the step fail, their own request keeps what is before the first.

        Args:
            chain: already extended over these entries.
            indices: entries of the request's table, ascending, at least one.
            blocks: the table's blocks there.
            step_id: of the step.
        """
        for index, block in zip(indices, blocks, strict=True):
            self.insert(chain, index, [block], step_id=step_id)
        owner = chain.request_id
        followers = self._pending[step_id].followers.setdefault(owner, {})
        followers.setdefault(owner, indices[0] * self.block_size)

    def insert_last(
        self,
        chains: Sequence[HashChain],
        indices: Sequence[int],
        blocks: Sequence[int],
        windows: NDArray[np.int32],
    ) -> None:
        """Name one computed block of each of several requests: what decodes have just filled.

        A chain that is not exactly `indices[i]` keys long and lacks that key is left alone: its
        owner ran while the cache was off, and `extend` and `insert` catch up.

        Args:
            chains: mutated, one per request.
            indices: which full block of its request each is.
            blocks: their ids.
            windows: [m, block_size], the tokens of each.
        """
        if not self.enabled:
            return
        named: list[int] = []
        new_keys: list[bytes] = []
        filled = self._blocks_of(windows.reshape(-1))
        for chain, index, block, tokens in zip(chains, indices, blocks, filled, strict=True):
            keys = chain.keys
            if len(keys) == index:
                key = sha256((keys[-1] if index else chain.root) + tokens).digest()
                keys.append(key)
            elif len(keys) > index:
                key = keys[index]
            else:
                continue
            named.append(block)
            new_keys.append(key)
        self.pool.set_keys(named, new_keys)

    def confirm(self, step_id: int) -> None:
        """A step has run: what it filled is no longer pending. Unknown steps are no error."""
        self._pending.pop(step_id, None)

    def is_relied_on(self, step_id: int, request_id: int) -> bool:
        """Others hit what this request fills in this step, so it cannot be undone."""
        pending = self._pending.get(step_id)
        return pending is not None and any(
            follower != request_id for follower in pending.followers.get(request_id, ())
        )

    def undo(self, step_id: int, request_id: int, num_kept_tokens: int = 0) -> None:
        """Take one request back out of a step being planned: its pending keys and its reliance.

        Call it before its blocks are released. It must not be relied on. What it keeps it still
        relies on.
        """
        pending = self._pending.get(step_id)
        if pending is not None:
            assert not self.is_relied_on(step_id, request_id), f"request {request_id} is relied on"
            for block in [b for b, owner in pending.owners.items() if owner == request_id]:
                del pending.owners[block]
                self.pool.clear_key(block)
        for other in self._pending.values():
            for followers in other.followers.values():
                if followers.get(request_id, -1) >= num_kept_tokens:
                    del followers[request_id]

    def withdraw(self, step_id: int) -> dict[int, int]:
        """A step failed: nothing it was to fill is known.

        With several steps in flight a failed one voids the later ones too: withdraw each.

        Returns:
            request id -> tokens it may keep as computed, for all who had hit a pending block.
        """
        pending = self._pending.pop(step_id, None)
        if pending is None:
            return {}
        for block in pending.owners:
            self.pool.clear_key(block)
        kept: dict[int, int] = {}
        for followers in pending.followers.values():
            for request_id, tokens in followers.items():
                kept[request_id] = min(tokens, kept.get(request_id, tokens))
        return kept

    def reset(self) -> int:
        """Forget everything cached; nothing computed so far is hit again.

        Returns:
            How many cached blocks became free.
        """
        return self.pool.clear_keys()

    # -- invariants --------------------------------------------------------------------------

    def check(self) -> None:
        """Verify the pending bookkeeping, for tests.

        Raises:
            AssertionError: it does not add up.
        """
        seen = [block for pending in self._pending.values() for block in pending.owners]
        assert len(set(seen)) == len(seen), "a block is pending twice"
        for block in seen:
            assert self.pool.is_in_use(block), f"pending block {block} can be evicted"

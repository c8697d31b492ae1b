"""KV blocks in host memory: what is stored when the device evicts it, what is loaded on a hit.

A block that is named (full, of known tokens) is stored when its device block is given to somebody
else, whoever had computed it: a finished request, or a preempted one. So nothing is copied that is
not lost otherwise. A request that is admitted, or comes back, takes the longest prefix that device
and host have together; loading counts as soon as it is planned, like a pending block.

Copies are part of a plan and the runner makes them before it writes anything: first the stores,
whose blocks still hold what they held when the plan was made, then the loads. They take time of the
step, so they are planned only where they cost less than to compute the tokens.
"""

from collections.abc import Sequence

import numpy as np

from paceline_engine.core.block_pool import NULL_BLOCK
from paceline_engine.core.cost_model import StepCostModel
from paceline_engine.core.host_index import HostIndex
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import StepPlan, StepResult
from paceline_engine.core.prefix_cache import HashChain, PrefixCache

_WEIGHT = 0.2
_FADE = 0.98


class CopyTime:
    """Milliseconds to copy one block in one direction, learned. Mutable."""

    def __init__(self) -> None:
        self._ms: float | None = None

    @property
    def ms(self) -> float:
        """Of one block; 0 before the first was copied, so that one is."""
        return 0.0 if self._ms is None else self._ms

    def observe(self, num_blocks: int, spent_ms: float) -> None:
        """So many blocks took so long."""
        if num_blocks:
            each = spent_ms / num_blocks
            self._ms = each if self._ms is None else self._ms + _WEIGHT * (each - self._ms)

    def fade(self) -> None:
        """A copy was not made because it is too slow: believe a little less in that."""
        if self._ms is not None:
            self._ms *= _FADE


def host_tier(limits: EngineLimits, model: StepCostModel, cache: PrefixCache) -> "Offload | None":
    """What is evicted from the cache's pool goes to the host from now on; None without a tier."""
    if not limits.num_host_blocks:
        return None
    tier = Offload(limits.num_host_blocks, model, cache)
    cache.pool.on_evict = tier.evicted
    return tier


class Offload:
    """What the host tier is for. Mutable; the scheduler's state owns it.

    Attributes:
        index: what is held.
        store_time, load_time: of a block, to the host and back.
        num_skipped: blocks that were evicted and not stored, since it does not pay.
    """

    def __init__(self, num_slots: int, model: StepCostModel, cache: PrefixCache) -> None:
        self.index = HostIndex(num_slots)
        self.store_time = CopyTime()
        self.load_time = CopyTime()
        self.num_skipped = 0
        self._size = cache.block_size
        self._model = model
        self._cache = cache
        self._stores: dict[int, int] = {}  # host slot -> device block, of the next plan
        self._loads: dict[int, int] = {}  # device block -> host slot, of the next plan

    # -- to the host -------------------------------------------------------------------------

    def evicted(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        """Device blocks are given to somebody else, who writes to them from the next plan on."""
        if not self._cache.enabled:
            return
        if not self._pays(self.store_time.ms + self.load_time.ms, self._size, context=0):
            self.num_skipped += len(blocks)
            self.store_time.fade()
            self.load_time.fade()
            return
        for block, key in zip(blocks, keys, strict=True):
            slot = self.index.put(key)
            if slot is not None:
                self._stores[slot] = block

    # -- back to the device ------------------------------------------------------------------

    def lookup(self, chain: HashChain, num_tokens: int, start: int = 0) -> list[int]:
        """Table entries from `start` on that need not be computed: `PrefixCache.lookup` and more.

        Returns:
            The device's blocks, and `NULL_BLOCK` for those that would be loaded.
        """
        if not self._cache.enabled:
            return []
        find = self._cache.pool.find
        entries: list[int] = []
        first = -1
        for key in chain.keys[start : max(0, num_tokens - 1) // self._size]:
            block = find(key)
            if block is None:
                if key not in self.index:
                    break
                block = NULL_BLOCK
                if first < 0:
                    first = len(entries)
            entries.append(block)
        entries = self._cache.usable(entries)
        if not 0 <= first < len(entries):
            return entries
        behind = entries[first:]
        copies_ms = behind.count(NULL_BLOCK) * self.load_time.ms
        context = (start + first) * self._size
        if self._pays(copies_ms, len(behind) * self._size, context=context):
            return entries
        self.load_time.fade()
        return self._cache.usable(entries[:first])

    def load(self, chain: HashChain, entries: list[int], start: int, step_id: int) -> list[int]:
        """Plan the loads that `lookup` meant: take blocks for them and name their content.

        Args:
            chain: of the request that is admitted.
            entries: of `lookup`; those of the device are taken already.
            start: entry of its table at which they begin.
            step_id: the step being planned.

        Returns:
            The entries with blocks of the device alone; they can be allocated.
        """
        missing = [i for i, block in enumerate(entries) if block == NULL_BLOCK]
        slots = [self.index.use(chain.keys[start + i]) for i in missing]  # pinned before evictions
        blocks = self._cache.pool.allocate(len(missing))
        table = list(entries)
        for i, block in zip(missing, blocks, strict=True):
            table[i] = block
        self._loads.update(zip(blocks, slots, strict=True))
        self._cache.insert_loaded(chain, [start + i for i in missing], blocks, step_id)
        return table

    def _pays(self, copies_ms: float, num_tokens: int, *, context: int) -> bool:
        """Whether copies take less time than to compute the tokens; unknown means they do."""
        if not self._model.is_warm:
            return True
        a, b = self._model.cost(context=context)
        compute_ms = a * num_tokens + b * num_tokens * num_tokens
        return compute_ms <= 0 or copies_ms < compute_ms

    # -- plans and results -------------------------------------------------------------------

    def put_into(self, plan: StepPlan) -> None:
        """The copies since the last plan become part of this one."""
        self.index.unpin()
        if self._stores:
            plan.store_slots = np.array(list(self._stores), dtype=np.int32)
            plan.store_blocks = np.array(list(self._stores.values()), dtype=np.int32)
            self._stores.clear()
        if self._loads:
            plan.load_blocks = np.array(list(self._loads), dtype=np.int32)
            plan.load_slots = np.array(list(self._loads.values()), dtype=np.int32)
            self._loads.clear()

    def predict_ms(self, plan: StepPlan) -> float:
        """How long the copies of a plan will take."""
        stores, loads = len(plan.store_slots), len(plan.load_slots)
        return stores * self.store_time.ms + loads * self.load_time.ms

    def learn(self, plan: StepPlan, result: StepResult) -> None:
        """A plan's copies were made."""
        self.store_time.observe(len(plan.store_slots), result.store_ms)
        self.load_time.observe(len(plan.load_slots), result.load_ms)

    def failed(self, plan: StepPlan) -> None:
        """Nobody knows which of a plan's copies were made, or whether one was at fault."""
        self.index.forget(plan.store_slots.tolist())
        self.index.forget(plan.load_slots.tolist())

    def clear(self) -> None:
        """Forget what is held."""
        self.index.clear()

    def check(self) -> None:
        """Verify that no load is left over between two plans, for tests.

        Raises:
            AssertionError: something does not add up.
        """
        assert not self._loads, "a load belongs to no plan"
        assert all(0 <= slot < self.index.num_slots for slot in self._stores)
        self.index.check()

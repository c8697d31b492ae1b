"""KV blocks in host memory: copies between the cache and a store beside it, as plans say.

The connector is two calls, `store` and `load`; who implements them may keep blocks anywhere. What
is built is the host's own memory: a row of bytes for each slot, all caches of a block behind one
another in the cache's own number format and memory order, so a block comes back bit for bit.

A copy is done when its call returns, so a step waits for its copies.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline_engine.core.plan import Int32, StepPlan
from paceline_kernels.paged_kv import LayerKv


class KvConnector(Protocol):
    """A place for KV blocks that the device has no room for."""

    def store(self, blocks: Int32, slots: Int32) -> None:
        """Copy KV block blocks[i] to slots[i]; no slot twice. Done when it returns."""
        ...

    def load(self, slots: Int32, blocks: Int32) -> None:
        """Copy slots[i] to KV block blocks[i]; no block twice. Done when it returns.

        An error fails the step: its requests go on from the last block before the first load, and
        nobody asks for these slots again.
        """
        ...


class HostTier:
    """The host's memory as a connector, for a cache that lies there too or on a device.

    Memory is taken from the machine where it is first written, but for a device's: copies to and
    from that need pages that stay in place, so all of it is taken at the start.

    Args:
        kv: every layer whose keys and values belong to a block.
        num_slots: blocks that it holds.
    """

    def __init__(self, kv: Sequence[LayerKv], num_slots: int) -> None:
        self._caches = [_rows(cache) for layer in kv for cache in (layer.k_cache, layer.v_cache)]
        self._ends = np.cumsum([cache.shape[1] for cache in self._caches]).tolist()
        self._device = self._caches[0].device
        is_host = self._device.type == "cpu"
        size = (num_slots, self._ends[-1])
        if is_host:
            self._rows = torch.from_numpy(np.zeros(size, dtype=np.uint8))
        else:
            self._rows = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self._is_host = is_host

    def store(self, blocks: Int32, slots: Int32) -> None:
        """As in `KvConnector`."""
        if self._is_host:
            rows = self._rows.numpy()
            for cache, part in self._parts():
                source = cache.numpy()
                for block, slot in zip(blocks.tolist(), slots.tolist(), strict=True):
                    rows[slot, part] = source[block]
            return
        at = torch.from_numpy(blocks.astype(np.int64)).to(self._device)
        staged = torch.cat([cache.index_select(0, at) for cache in self._caches], dim=1)
        for number, slot in enumerate(slots.tolist()):
            self._rows[slot].copy_(staged[number], non_blocking=True)
        torch.cuda.current_stream(self._device).synchronize()

    def load(self, slots: Int32, blocks: Int32) -> None:
        """As in `KvConnector`."""
        if self._is_host:
            rows = self._rows.numpy()
            for cache, part in self._parts():
                target = cache.numpy()
                for block, slot in zip(blocks.tolist(), slots.tolist(), strict=True):
                    target[block] = rows[slot, part]
            return
        at = torch.from_numpy(blocks.astype(np.int64)).to(self._device)
        sizes = (len(blocks), self._ends[-1])
        staged = torch.empty(sizes, dtype=torch.uint8, device=self._device)
        for number, slot in enumerate(slots.tolist()):
            staged[number].copy_(self._rows[slot], non_blocking=True)
        for cache, part in self._parts():
            cache.index_copy_(0, at, staged[:, part])
        torch.cuda.current_stream(self._device).synchronize()

    def _parts(self) -> list[tuple[Tensor, slice]]:
        starts = [0, *self._ends[:-1]]
        parts = [slice(start, end) for start, end in zip(starts, self._ends, strict=True)]
        return list(zip(self._caches, parts, strict=True))


def _rows(cache: Tensor) -> Tensor:
    """[num_blocks, bytes of a block] uint8: the memory of one cache, whatever its format."""
    num_blocks, row = cache.shape[0], cache.stride(0)
    if cache[0].numel() != row:
        raise ValueError(f"a block of {cache[0].numel()} numbers is no run of memory: stride {row}")
    return cache.as_strided((num_blocks, row), (row, 1)).view(torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTimes:
    """Milliseconds that a step's copies took."""

    store_ms: float = 0.0
    load_ms: float = 0.0


def copy(connector: KvConnector | None, plan: StepPlan) -> CopyTimes:
    """Make a plan's copies, before anything of its step writes to the cache.

    Args:
        connector: None: there is no host tier, so the plan has no copies.
        plan: of the step.
    """
    num_stores, num_loads = len(plan.store_slots), len(plan.load_slots)
    if connector is None or not (num_stores or num_loads):
        return CopyTimes()
    started = time.perf_counter()
    if num_stores:
        connector.store(plan.store_blocks, plan.store_slots)
    stored = time.perf_counter()
    if num_loads:
        connector.load(plan.load_slots, plan.load_blocks)
    loaded = time.perf_counter()
    return CopyTimes(store_ms=(stored - started) * 1e3, load_ms=(loaded - stored) * 1e3)

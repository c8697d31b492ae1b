"""A head on the target's hidden states writes ahead: EAGLE, multi-token prediction.

Its keys and values follow the target through every token, also while nobody asks for drafts,
because the states are gone with the step; the rest of its layer runs for guesses alone. Entry i of
its KV is made of the target's state at i and the token at i + 1, so the newest entry waits for the
newest token, and the last entry of a full block depends on the block behind it: a prefix hit stops
one block earlier (`core.speculation.withheld_blocks`).

Sources: EAGLE, arXiv:2401.15077; DeepSeek-V3, arXiv:2412.19437, section 2.2.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline_engine.core.arrays import Int32, Int64
from paceline_engine.run.batch import Batch
from paceline_engine.run.drafts.draft_kv import DraftKv
from paceline_engine.run.drafts.drawing import draw
from paceline_engine.run.drafts.head_load import LoadedHead
from paceline_engine.run.drafts.proposer import ComputedStep
from paceline_engine.run.sampler import Sampler
from paceline_kernels.decoder import DecoderBatch


class HeadProposer:
    """Guesses by a head, each from the state guessed before.

    Args:
        loaded: the head and its KV layer.
        batch: guesses are written behind the known tokens, where they are the sampler's context.
        sampler: of the target.
        num_blocks: of the pool.
        max_drafts: most that is ever asked for.
        num_host_blocks: of the tier that blocks are copied to and come back from.
    """

    needs_hidden = True

    def __init__(
        self,
        loaded: LoadedHead,
        batch: Batch,
        sampler: Sampler,
        *,
        num_blocks: int,
        max_drafts: int,
        num_host_blocks: int = 0,
    ) -> None:
        self._head, self._cache = loaded.head, loaded.kv[0]
        self._device = self._cache.k_cache.device
        self._batch, self._sampler = batch, sampler
        self._kv = DraftKv(batch, num_blocks, max_drafts, num_host_blocks)
        self._newest = torch.empty(0)
        self._place: Int64 = np.zeros(len(batch.num_blocks), dtype=np.int64)  # by slot, in _newest

    def follow(self, step: ComputedStep) -> None:
        """See `Proposer`: entries of all positions whose state and next token are known."""
        plan, yielded = step.plan, step.yielded
        assert step.hidden is not None
        starts = plan.starts.astype(np.int64)
        counts = plan.num_tokens.astype(np.int64)
        first = np.cumsum(counts) - counts  # place of each row in the step
        if yielded is not None:  # behind these rejected drafts were computed
            counts[yielded.rows] = yielded.starts + yielded.counts - 1 - starts[yielded.rows]
        rows = np.flatnonzero(counts > 0)
        if not rows.size:
            return
        slots, starts, counts = plan.slots[rows].astype(np.int64), starts[rows], counts[rows]
        ends = np.cumsum(counts)
        places = np.arange(ends[-1]) + np.repeat(first[rows] - (ends - counts), counts)
        hidden = step.hidden[self._on_device(places)]
        self._head.write_kv(self._rows(slots, starts, starts + counts), hidden, self._cache)
        self._newest = hidden[self._on_device(ends - 1)]
        self._place[slots] = np.arange(len(slots))

    def propose(self, slots: Int64, lengths: Int64, max_drafts: int) -> Int32:
        """See `Proposer`."""
        drafts = np.full((len(slots), max_drafts), -1, dtype=np.int32)
        rows = np.arange(len(slots))
        states = self._newest[self._on_device(self._place[slots])]
        longest = self._batch.token_ids.shape[1] - 1
        for column in range(max_drafts):
            ends = lengths[rows] + column
            fits = ends < longest  # a guess leaves room for the token behind it
            rows, ends, states = rows[fits], ends[fits], states[self._on_device(fits)]
            if not rows.size:
                break
            states = self._head.forward(
                self._rows(slots[rows], ends - 2, ends - 1), states, self._cache
            )
            logits = self._head.logits(states)
            drafts[rows, column], failed = draw(
                self._sampler, self._batch, slots[rows], ends, logits
            )
            if failed:
                states = states[self._on_device(np.delete(np.arange(len(rows)), failed))]
                rows = np.delete(rows, failed)
        return drafts

    def _rows(self, slots: Int64, starts: Int64, ends: Int64) -> DecoderBatch:
        """Entries [start, end) of each slot: positions i, and the tokens at i + 1."""
        at = self._kv.rows(slots, starts, ends, np.empty(0, dtype=np.int64))
        next_ones = np.repeat(slots, ends - starts), at.positions.numpy() + 1
        tokens = self._batch.token_ids[next_ones].astype(np.int64)
        return replace(at, token_ids=torch.from_numpy(tokens)).to(self._device)

    def _on_device(self, index: NDArray[Any]) -> Tensor:
        return torch.from_numpy(index).to(self._device)

"""A small model of the same tokenizer writes ahead; the target says how much of it holds.

The draft model draws as the target does: with a request's own temperature, truncation, penalties,
masks and the noise of each output position. Where both models think alike, both draw alike, so a
random request's drafts hold nearly as often as a greedy one's.

Source: "Fast Inference from Transformers via Speculative Decoding", arXiv:2211.17192.
"""

import numpy as np
import torch

from paceline_engine.core.arrays import Int32, Int64
from paceline_engine.run.batch import Batch
from paceline_engine.run.drafts.draft_kv import DraftKv
from paceline_engine.run.drafts.drawing import draw
from paceline_engine.run.drafts.load import LoadedDrafts
from paceline_engine.run.drafts.proposer import ComputedStep
from paceline_engine.run.sampler import Sampler

MAX_CATCH_UP_TOKENS = 512
"""Tokens that requests far behind may compute with one step, so that no step becomes long."""


class DraftModelProposer:
    """Computes nothing until drafts are asked for; then a request's missing tokens come first.

    Args:
        drafts: the model and its KV layers.
        batch: guesses are written behind the known tokens, where they are the sampler's context.
        sampler: of the target.
        num_blocks: of the pool.
        max_drafts: most that is ever asked for.
        max_step_tokens: most tokens of one forward.
    """

    needs_hidden = False

    def __init__(
        self,
        drafts: LoadedDrafts,
        batch: Batch,
        sampler: Sampler,
        *,
        num_blocks: int,
        max_drafts: int,
        max_step_tokens: int,
    ) -> None:
        self._decoder, self._caches = drafts.decoder, drafts.kv
        self._device = drafts.kv[0].k_cache.device
        self._batch, self._sampler = batch, sampler
        self._kv = DraftKv(batch, num_blocks, max_drafts)
        self._near = max_drafts + 2  # what one step leaves behind at most
        self._max_step_tokens = max_step_tokens

    def follow(self, step: ComputedStep) -> None:
        """See `Proposer`; costs nothing but a look at new blocks."""
        self._kv.follow(step.plan)

    def propose(self, slots: Int64, lengths: Int64, max_drafts: int) -> Int32:
        """See `Proposer`; a request that is not caught up gets none yet."""
        drafts = np.full((len(slots), max_drafts), -1, dtype=np.int32)
        rows, logits = self._catch_up(slots, lengths)
        longest = self._batch.token_ids.shape[1] - 1
        for column in range(max_drafts):
            ends = lengths[rows] + column
            fits = ends < longest  # a guess leaves room for the token behind it
            if not fits.all():
                logits = logits[torch.from_numpy(fits).to(self._device)]
                rows, ends = rows[fits], ends[fits]
            if not rows.size:
                break
            drafts[rows, column], failed = draw(
                self._sampler, self._batch, slots[rows], ends, logits
            )
            rows, ends = np.delete(rows, failed), np.delete(ends, failed)
            if column + 1 == max_drafts or not rows.size:
                break
            logits = self._compute(slots[rows], ends, ends + 1, np.arange(len(rows)))
        return drafts

    def _catch_up(self, slots: Int64, lengths: Int64) -> tuple[Int64, torch.Tensor]:
        """Compute known tokens that the draft model has not seen.

        Returns:
            Rows that have seen all, and the logits behind their newest token.
        """
        starts = self._kv.known[slots]
        missing = lengths - starts
        counts = self._pieces(missing)
        rows = np.flatnonzero(counts)
        counts, starts = counts[rows], starts[rows]
        ends = starts + counts
        is_done = ends == lengths[rows]
        last = np.cumsum(counts) - 1
        logits = self._compute(slots[rows], starts, ends, last[is_done])
        self._kv.note_computed(slots[rows], ends)
        return rows[is_done], logits

    def _pieces(self, missing: Int64) -> Int64:
        """How many of its missing tokens each row computes now; who misses least comes first."""
        order = np.argsort(missing, kind="stable")
        wanted = missing[order]
        is_far = wanted > self._near
        left = np.where(is_far, MAX_CATCH_UP_TOKENS, self._max_step_tokens)
        before = np.cumsum(wanted) - wanted
        before[is_far] -= int(wanted[~is_far].sum())
        granted = np.clip(left - before, 0, wanted)
        room = self._max_step_tokens - (np.cumsum(granted) - granted)
        pieces = np.zeros_like(missing)
        pieces[order] = np.clip(room, 0, granted)
        return pieces

    def _compute(self, slots: Int64, starts: Int64, ends: Int64, logit_rows: Int64) -> torch.Tensor:
        rows = self._kv.rows(slots, starts, ends, logit_rows)
        return self._decoder.forward(rows.to(self._device), self._caches)[0]

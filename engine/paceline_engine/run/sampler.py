"""Logits become tokens.

All rows take the argmax; rows whose flags ask for more are done again, in slices of bounded
memory, each feature on the rows that have it. A batch of plain greedy rows costs the argmax.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline_engine.core.plan import TokenLogprobs
from paceline_engine.run import noise, slot_params, truncation
from paceline_engine.run.batch import Batch, SampledRows
from paceline_engine.run.logprobs import logprobs_of
from paceline_engine.run.masks import apply_masks
from paceline_engine.run.penalties import apply_penalties

Int64 = NDArray[np.int64]

_CACHED_BYTES = 3 << 19
"""More at a time leaves the processor's cache: twice the time for each row was seen."""
_RESAMPLED = ~(slot_params.LOGPROBS | slot_params.PROMPT_LOGPROBS)


@dataclass(slots=True, kw_only=True)
class Sampled:
    """Outcome, by place among the sampled rows.

    Attributes:
        tokens: [n] int64.
        logprobs: place -> the one entry of its token.
        errors: place -> why there is no token.
    """

    tokens: Int64
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


class Sampler:
    """Samples the rows of a batch; keeps scratch memory between steps, nothing else."""

    def __init__(self, batch: Batch, vocab_size: int, scratch_bytes: int) -> None:
        self._batch = batch
        self._noise = noise.TokenNoise(vocab_size)
        self._slice_rows = slice_rows_for(vocab_size, scratch_bytes)

    def sample(self, logits: Tensor, sampled: SampledRows) -> Sampled:
        """Choose one token for each row of logits.

        Args:
            logits: [n, vocab] float32; not changed.
            sampled: slots and positions of the n rows.
        """
        tokens, picked = _argmax(logits)
        # argmax takes a NaN for the largest, so a look at the picked value finds any of the row.
        is_bad = ~np.isfinite(picked)
        flags = self._batch.params.flags[sampled.slots]
        result = Sampled(tokens=tokens)
        if is_bad.any():
            message = "the model's logits are not finite (NaN or infinity)"
            result.errors = dict.fromkeys(np.flatnonzero(is_bad).tolist(), message)
        if not flags.any():
            return result
        special = np.flatnonzero(((flags & _RESAMPLED) != 0) & ~is_bad)
        for start in range(0, len(special), self._slice_rows):
            self._resample(logits, special[start : start + self._slice_rows], sampled, result)
        self._gather_logprobs(logits, flags, sampled, result)
        return result

    def _resample(
        self, logits: Tensor, places: Int64, sampled: SampledRows, result: Sampled
    ) -> None:
        """Treat the rows at `places` with all that their flags ask for."""
        batch = self._batch
        slots, ends = sampled.slots[places], sampled.ends[places]
        flags = batch.params.flags[slots]
        scores = logits[torch.from_numpy(places)]
        has_penalties = np.flatnonzero((flags & slot_params.PENALTIES) != 0)
        if has_penalties.size:
            apply_penalties(scores, has_penalties, slots, ends, batch)
        apply_masks(scores, flags, slots, ends, batch)
        chosen, best = _argmax(scores)
        for row in np.flatnonzero(~np.isfinite(best)).tolist():
            message = "no token is allowed: the masks of this request exclude all"
            result.errors[int(places[row])] = message
        is_random = (flags & slot_params.RANDOM) != 0
        has_cut = (flags & slot_params.TRUNCATED) != 0
        for rows in (np.flatnonzero(is_random & ~has_cut), np.flatnonzero(is_random & has_cut)):
            if rows.size:
                chosen[rows] = self._draw(scores, rows, slots[rows], ends[rows])
        result.tokens[places] = chosen

    def _draw(self, scores: Tensor, rows: Int64, slots: Int64, ends: Int64) -> Int64:
        """Sample rows, all cut or none: argmax of scaled scores plus Gumbel noise."""
        params = self._batch.params
        temperature = torch.from_numpy(params.temperature[slots]).unsqueeze(1)
        scaled = scores[torch.from_numpy(rows)].div_(temperature)
        flags = params.flags[slots]
        if (flags & slot_params.MIN_P).any():
            truncation.mask_min_p_(scaled, params.min_p[slots])
        outputs = ends - self._batch.num_prompt[slots]
        keys = noise.position_keys(params.keys[slots], outputs)
        if not flags[0] & slot_params.TRUNCATED:
            return _argmax(scaled.add_(self._noise.of_vocabulary(keys)))[0]
        kept, ids = truncation.keep_top(scaled, params.top_k[slots], params.top_p[slots])
        places, _ = _argmax(kept + self._noise.of_tokens(keys, ids))
        drawn: Int64 = ids.numpy()[np.arange(len(rows)), places]
        return drawn

    def _gather_logprobs(
        self, logits: Tensor, flags: NDArray[np.int32], sampled: SampledRows, result: Sampled
    ) -> None:
        asked = np.flatnonzero((flags & slot_params.LOGPROBS) != 0).tolist()
        wanted = np.array([place for place in asked if place not in result.errors], np.int64)
        counts = self._batch.params.num_logprobs[sampled.slots[wanted]]
        for start in range(0, len(wanted), self._slice_rows):
            some = wanted[start : start + self._slice_rows]
            entries = logprobs_of(
                logits[torch.from_numpy(some)],
                result.tokens[some],
                counts[start : start + self._slice_rows],
            )
            result.logprobs |= zip(some.tolist(), entries, strict=True)


def slice_rows_for(vocab_size: int, scratch_bytes: int) -> int:
    """Rows of logits that may be copied about eight times over in the scratch memory."""
    return max(1, min(_CACHED_BYTES // (4 * vocab_size), scratch_bytes // (8 * 4 * vocab_size)))


def _argmax(scores: Tensor) -> tuple[Int64, NDArray[np.float32]]:
    """Best token of each row and its score; numpy's search is ten times as fast as torch's."""
    table = scores.numpy()
    best: Int64 = table.argmax(axis=1)
    return best, table[np.arange(len(best)), best]

"""Logits become tokens.

All rows take the argmax; random rows are drawn from the logits where they lie. Only rows with
penalties or masks are copied, in slices of bounded memory. A batch of greedy rows costs the argmax.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from paceline_engine.core.arrays import Float32, Int32, Int64
from paceline_engine.core.plan import TokenLogprobs
from paceline_engine.run import noise, slot_params, truncation
from paceline_engine.run.batch import Batch, SampledRows
from paceline_engine.run.logprobs import logprobs_of
from paceline_engine.run.masks import apply_masks
from paceline_engine.run.penalties import apply_penalties
from paceline_kernels import gumbel, ops
from paceline_kernels.sampling import SLICE_BYTES, Rows

_CHANGED = (
    slot_params.PENALTIES
    | slot_params.BIAS
    | slot_params.ALLOWED
    | slot_params.BAD_WORDS
    | slot_params.MIN_TOKENS
)


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
    """Samples the rows of a batch; keeps nothing between steps.

    Args:
        batch: with the parameters of each slot.
        vocab_size: columns of the logits.
        scratch_bytes: most memory for copies of rows.
        impl: implementation of the kernels; the tokens are the same with each.
    """

    def __init__(
        self, batch: Batch, vocab_size: int, scratch_bytes: int, impl: str = "torch"
    ) -> None:
        self._batch = batch
        self._impl = impl
        self._slice_rows = slice_rows_for(vocab_size, scratch_bytes)

    def sample(
        self, logits: Tensor, sampled: SampledRows, *, keep_logprobs: bool = True
    ) -> Sampled:
        """Choose one token for each row of logits.

        Args:
            logits: [n, vocab] float32; not changed.
            sampled: slots and positions of the n rows.
            keep_logprobs: of the rows that ask for them; False leaves them out.
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
        logits = logits.cpu()
        is_changed = (flags & _CHANGED) != 0
        is_random = (flags & slot_params.RANDOM) != 0
        plain = np.flatnonzero(is_random & ~is_changed & ~is_bad)
        if plain.size:
            tokens[plain] = self._draw(logits, plain, picked[plain], sampled, plain)
        changed = np.flatnonzero(is_changed & ~is_bad)
        for start in range(0, len(changed), self._slice_rows):
            self._sample_changed(logits, changed[start : start + self._slice_rows], sampled, result)
        if keep_logprobs:
            self._gather_logprobs(logits, flags, sampled, result)
        return result

    def _sample_changed(
        self, logits: Tensor, places: Int64, sampled: SampledRows, result: Sampled
    ) -> None:
        """Sample rows whose logits are changed first, by penalties or masks."""
        batch = self._batch
        slots, ends = sampled.slots[places], sampled.ends[places]
        flags = batch.params.flags[slots]
        scores = logits[torch.from_numpy(places)]
        has_penalties = np.flatnonzero((flags & slot_params.PENALTIES) != 0)
        if has_penalties.size:
            apply_penalties(scores, has_penalties, slots, ends, batch)
        apply_masks(scores, flags, slots, ends, batch)
        chosen, best = _argmax(scores)
        is_bad = ~np.isfinite(best)
        for row in np.flatnonzero(is_bad).tolist():
            message = "no token is allowed: the masks of this request exclude all"
            result.errors[int(places[row])] = message
        drawn = np.flatnonzero(((flags & slot_params.RANDOM) != 0) & ~is_bad)
        if drawn.size:
            chosen[drawn] = self._draw(scores, drawn, best[drawn], sampled, places[drawn])
        result.tokens[places] = chosen

    def _draw(
        self, scores: Tensor, rows: Int64, best: Float32, sampled: SampledRows, places: Int64
    ) -> Int64:
        """Draw tokens: argmax of scaled scores plus Gumbel noise, over what may be drawn.

        Args:
            scores: [*, vocab].
            rows: [n] rows of scores.
            best: [n] largest score of each row.
            sampled: of the step.
            places: [n] the rows' places in `sampled`.
        """
        params = self._batch.params
        slots = sampled.slots[places]
        temperature = params.temperature[slots]
        chosen = Rows(
            places=rows,
            temperature=temperature,
            floor=truncation.min_p_floor(best / temperature, params.min_p[slots]),
        )
        keys = noise.position_keys(
            params.keys[slots], sampled.ends[places] - self._batch.num_prompt[slots]
        )
        has_cut = (params.flags[slots] & slot_params.TRUNCATED) != 0
        tokens = np.zeros(len(rows), dtype=np.int64)
        free, cut = np.flatnonzero(~has_cut), np.flatnonzero(has_cut)
        if free.size:
            tokens[free] = ops.sample_gumbel(scores, chosen.some(free), keys[free], impl=self._impl)
        # torch copies the rows over and over; the C++ side reads them where they lie.
        step = len(cut) if self._impl == "cpu" else self._slice_rows
        for start in range(0, len(cut), max(1, step)):
            part = cut[start : start + step]
            some = slots[part]
            kept, ids = truncation.keep_top(
                scores, chosen.some(part), params.top_k[some], params.top_p[some], impl=self._impl
            )
            noisy = kept + gumbel.noise_of_tokens(keys[part], torch.from_numpy(ids)).numpy()
            tokens[part] = ids[np.arange(len(part)), noisy.argmax(axis=1)]
        return tokens

    def _gather_logprobs(
        self, logits: Tensor, flags: Int32, sampled: SampledRows, result: Sampled
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
    return max(1, min(SLICE_BYTES // (4 * vocab_size), scratch_bytes // (8 * 4 * vocab_size)))


def _argmax(scores: Tensor) -> tuple[Int64, Float32]:
    """Best token of each row and its score; numpy's search is ten times as fast as torch's."""
    if scores.device.type != "cpu":
        values, indices = scores.max(dim=1)
        return indices.cpu().numpy(), values.cpu().numpy()
    table = scores.numpy()
    best: Int64 = table.argmax(axis=1)
    return best, table[np.arange(len(best)), best]

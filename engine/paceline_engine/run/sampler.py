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
from paceline_engine.run.logprobs import gather_logprobs
from paceline_engine.run.masks import apply_masks
from paceline_engine.run.penalties import apply_penalties

Int64 = NDArray[np.int64]

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


def sample(logits: Tensor, sampled: SampledRows, batch: Batch, slice_rows: int) -> Sampled:
    """Choose one token for each row of logits.

    Args:
        logits: [n, vocab] float32; not changed.
        sampled: slots and positions of the n rows.
        batch: parameters and tokens of the slots.
        slice_rows: most rows that special treatment copies at a time.
    """
    best = logits.argmax(dim=-1)
    picked = logits.gather(1, best.unsqueeze(1)).squeeze(1)
    # argmax takes a NaN for the largest, so one look at the picked value finds any NaN of the row.
    is_bad = ~torch.isfinite(picked).numpy()
    tokens: Int64 = best.numpy()
    flags = batch.params.flags[sampled.slots]
    result = Sampled(tokens=tokens)
    if is_bad.any():
        message = "the model's logits are not finite (NaN or infinity)"
        result.errors = dict.fromkeys(np.flatnonzero(is_bad).tolist(), message)
    if not flags.any():
        return result
    special = np.flatnonzero(((flags & _RESAMPLED) != 0) & ~is_bad)
    for start in range(0, len(special), slice_rows):
        places = special[start : start + slice_rows]
        _resample(logits, places, sampled, batch, result)
    asked = np.flatnonzero((flags & slot_params.LOGPROBS) != 0)
    wanted = np.array([place for place in asked.tolist() if place not in result.errors], np.int64)
    if wanted.size:
        counts = batch.params.num_logprobs[sampled.slots[wanted]]
        entries = gather_logprobs(logits, wanted, tokens[wanted], counts, slice_rows)
        result.logprobs = dict(zip(wanted.tolist(), entries, strict=True))
    return result


def _resample(
    logits: Tensor, places: Int64, sampled: SampledRows, batch: Batch, result: Sampled
) -> None:
    """Treat the rows at `places` with all that their flags ask for."""
    slots, ends = sampled.slots[places], sampled.ends[places]
    params = batch.params
    flags = params.flags[slots]
    scores = logits[torch.from_numpy(places)]
    has_penalties = np.flatnonzero((flags & slot_params.PENALTIES) != 0)
    if has_penalties.size:
        apply_penalties(scores, has_penalties, slots, ends, batch)
    apply_masks(scores, flags, slots, ends, batch)
    is_random = (flags & slot_params.RANDOM) != 0
    chosen = np.empty(len(places), dtype=np.int64)
    best_scores, best = scores.max(dim=-1)
    chosen[:] = best.numpy()
    for row in np.flatnonzero(~torch.isfinite(best_scores).numpy()).tolist():
        result.errors[int(places[row])] = (
            "no token is allowed: the masks of this request exclude all"
        )
    has_cut = (flags & (slot_params.TRUNCATED)) != 0
    for rows, is_cut in (
        (np.flatnonzero(is_random & ~has_cut), False),
        (np.flatnonzero(is_random & has_cut), True),
    ):
        if rows.size:
            chosen[rows] = _draw(scores, rows, slots[rows], ends[rows], batch, is_cut)
    result.tokens[places] = chosen


def _draw(
    scores: Tensor, rows: Int64, slots: Int64, ends: Int64, batch: Batch, is_cut: bool
) -> Int64:
    """Sample rows with a temperature: argmax of scaled scores plus Gumbel noise."""
    params = batch.params
    temperature = torch.from_numpy(params.temperature[slots]).unsqueeze(1)
    scaled = scores[torch.from_numpy(rows)] / temperature
    has_min_p = (params.flags[slots] & slot_params.MIN_P) != 0
    if has_min_p.any():
        truncation.mask_min_p_(scaled, params.min_p[slots])
    outputs = ends - batch.num_prompt[slots]
    keys = torch.from_numpy(noise.position_keys(params.keys[slots], outputs)).unsqueeze(1)
    if is_cut:
        kept, ids = truncation.keep_top(scaled, params.top_k[slots], params.top_p[slots])
        place = (kept + noise.gumbel(keys, ids)).argmax(dim=-1, keepdim=True)
        drawn: Int64 = ids.gather(1, place).squeeze(1).numpy()
        return drawn
    vocabulary = torch.arange(scaled.shape[1])
    best: Int64 = scaled.add_(noise.gumbel(keys, vocabulary)).argmax(dim=-1).numpy()
    return best

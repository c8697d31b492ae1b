"""From one token for each draft position to the tokens that each row yields."""

from dataclasses import dataclass, field

import numpy as np
import torch

from paceline_engine.core.arrays import Int32, Int64
from paceline_engine.core.plan import StepPlan, TokenLogprobs
from paceline_engine.run.batch import SampledRows
from paceline_engine.run.sampler import Sampled
from paceline_kernels import ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Yielded:
    """What the rows that sample have given; all lists are in their order.

    Attributes:
        rows: [m] places in the plan; slots: [m].
        starts: [m] position of each row's first new token.
        counts: [m] new tokens, 0 in rows that failed.
        tokens: [m, width] int32, accepted drafts and the token behind them, then -1.
        logprobs: row of the plan -> one entry for each of its tokens.
        errors: row of the plan -> why it has no token.
    """

    rows: Int64
    slots: Int64
    starts: Int64
    counts: Int64
    tokens: Int32
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    def newest(self) -> tuple[Int64, Int64, Int32]:
        """Slots, positions and tokens of the last new token of each row that has any."""
        has = np.flatnonzero(self.counts)
        last = self.counts[has] - 1
        return self.slots[has], self.starts[has] + last, self.tokens[has, last]


def verify(plan: StepPlan, positions: SampledRows, sampled: Sampled) -> Yielded:
    """Accept drafts as far as they equal what was sampled in their places.

    A position that could not be sampled ends the run before it: its row fails in the next step, if
    the request is still there, and only a row that has no token at all fails now.

    Args:
        plan: its drafts were computed.
        positions: one for each token that may come: [drafts + rows that sample].
        sampled: what was chosen for each of them.
    """
    rows = np.flatnonzero(plan.samples)
    num_drafts = plan.num_drafts[rows].astype(np.int64)
    first = np.cumsum(num_drafts + 1) - num_drafts - 1  # place of each row's first position
    if len(plan.draft_tokens):
        accepted = ops.verify_drafts(
            torch.from_numpy(sampled.tokens),
            torch.from_numpy(plan.draft_tokens.astype(np.int64)),
            torch.from_numpy(num_drafts),
            impl="torch",  # the sampled tokens are on the host, on a device's side they cost more
        ).numpy()
    else:
        accepted = num_drafts
    counts = accepted + 1
    errors: dict[int, str] = {}
    for place, message in sorted(sampled.errors.items(), reverse=True):
        row = int(np.searchsorted(first, place, side="right")) - 1
        counts[row] = min(counts[row], place - first[row])
        if not counts[row]:
            errors[int(rows[row])] = message
    columns = np.arange(max(1, int(counts.max(initial=1))))
    is_token = columns < counts[:, None]
    tokens = np.full(is_token.shape, -1, dtype=np.int32)
    places = first[:, None] + columns
    tokens[is_token] = sampled.tokens[places[is_token]]
    return Yielded(
        rows=rows,
        slots=positions.slots[first],
        starts=positions.ends[first],
        counts=counts,
        tokens=tokens,
        logprobs=_logprobs(sampled, rows, first, counts),
        errors=errors,
    )


def _logprobs(
    sampled: Sampled, rows: Int64, first: Int64, counts: Int64
) -> dict[int, list[TokenLogprobs]]:
    if not sampled.logprobs:
        return {}
    return {
        row: [sampled.logprobs[place] for place in range(at, at + count)]
        for row, at, count in zip(rows.tolist(), first.tolist(), counts.tolist(), strict=True)
        if count and at in sampled.logprobs
    }

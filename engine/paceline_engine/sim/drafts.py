"""Drafts of a simulated engine: so many are right as chance says, and a right one is accepted.

Every output is the same constant (`requests`), so a draft token is right if it is that constant.
How many of a row's drafts hold is drawn when they are proposed: each is right with the same
chance, until the first that is not.

Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding
(arXiv:2211.17192), section 3.1: acceptances as independent draws.
"""

import numpy as np
from numpy.random import Generator

from paceline_engine.core.plan import Int32, StepPlan
from paceline_engine.sim.requests import OUTPUT_TOKEN

WRONG_TOKEN = 4


class Drafts:
    """Proposes drafts. Mutable: it uses up its generator.

    Args:
        acceptance: chance that a draft is right if all before it were, in [0, 1).
        rng: seeded by the caller.
    """

    def __init__(self, acceptance: float, rng: Generator) -> None:
        if not 0 <= acceptance < 1:
            raise ValueError(f"acceptance must be in [0, 1), got {acceptance}")
        self._acceptance, self._rng = acceptance, rng

    def propose(self, plan: StepPlan) -> Int32 | None:
        """[rows, max_drafts] int32 for the rows of a plan; None where none are asked for."""
        if not plan.max_drafts:
            return None
        shape = (len(plan.slots), plan.max_drafts)
        is_right = self._rng.random(shape) < self._acceptance
        return np.where(is_right, np.int32(OUTPUT_TOKEN), np.int32(WRONG_TOKEN))


def num_accepted(plan: StepPlan) -> Int32:
    """[rows] drafts of a plan that hold: those before the first wrong one."""
    counts: Int32 = plan.num_drafts
    width = int(counts.max(initial=0))
    if not width:
        return counts
    tokens = np.full((len(counts), width), WRONG_TOKEN, dtype=np.int32)
    tokens[np.arange(width) < counts[:, None]] = plan.draft_tokens
    held: Int32 = np.cumprod(tokens == OUTPUT_TOKEN, axis=1, dtype=np.int32).sum(
        axis=1, dtype=np.int32
    )
    return held

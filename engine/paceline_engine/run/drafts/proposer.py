"""What every proposer of drafts offers to the runner."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core.plan import StepPlan

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


class Proposer(Protocol):
    """Guesses how requests go on. A wrong guess costs time and never changes a token."""

    def follow(self, plan: StepPlan) -> None:
        """A step was computed; `plan` says which requests left their slots and which came.

        Tokens of slots that were removed can still be read, those of new ones are there.
        """
        ...

    def propose(self, slots: Int64, lengths: Int64, max_drafts: int) -> Int32:
        """Drafts for requests that go on.

        Args:
            slots: [n], each once.
            lengths: [n] known tokens of each.
            max_drafts: >= 1.

        Returns:
            [n, max_drafts], -1 behind the last draft of a row.
        """
        ...

"""What every proposer of drafts offers to the runner."""

from typing import Protocol

from paceline_engine.core.arrays import Int32, Int64
from paceline_engine.core.plan import StepPlan


class Proposer(Protocol):
    """Guesses how requests go on. A wrong guess costs time and never changes a token."""

    def follow(self, plan: StepPlan) -> None:
        """A step was computed; the batch has followed `plan` already."""
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

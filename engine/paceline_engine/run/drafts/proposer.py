"""What every proposer of drafts offers to the runner."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline_engine.core.arrays import Int32, Int64
from paceline_engine.core.plan import StepPlan
from paceline_engine.run.verification import Yielded
from paceline_kernels.decoder import DecoderBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedStep:
    """A step that was computed and sampled; its tokens stand in the batch.

    Attributes:
        plan: the batch has followed it.
        inputs: what the target computed, on the host; rejected drafts are among it.
        hidden: [tokens, hidden_size] float32 on the target's device, its states of all `inputs`
            behind the final norm; None unless the proposer needs them.
        yielded: what its rows gave; None if none samples.
    """

    plan: StepPlan
    inputs: DecoderBatch
    hidden: Tensor | None
    yielded: Yielded | None


class Proposer(Protocol):
    """Guesses how requests go on. A wrong guess costs time and never changes a token."""

    @property
    def needs_hidden(self) -> bool:
        """Whether steps have to keep the target's hidden states, which leaves out graphs."""
        ...

    def follow(self, step: ComputedStep) -> None:
        """A step was computed. Called for every step, also while nobody asks for drafts."""
        ...

    def propose(self, slots: Int64, lengths: Int64, max_drafts: int) -> Int32:
        """Drafts for requests that go on; called behind `follow` of the same step.

        Args:
            slots: [n], each once.
            lengths: [n] known tokens of each, the newest without KV of anybody.
            max_drafts: >= 1.

        Returns:
            [n, max_drafts], -1 behind the last draft of a row.
        """
        ...

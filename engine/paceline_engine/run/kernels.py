"""Which implementation of the kernels this process uses, and why."""

from dataclasses import dataclass

import torch

from paceline_engine.model.config import ModelConfig
from paceline_kernels import ops


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    """An implementation by name; `reason` says why it is not the fastest, if it is not."""

    impl: str
    sampler: str
    reason: str = ""

    def described(self) -> dict[str, str]:
        """For logs and the admin API."""
        decoder = f"{self.impl} ({self.reason})" if self.reason else self.impl
        return {"decoder": decoder, "sampler": self.sampler}


def choose_kernels(config: ModelConfig) -> KernelChoice:
    """Own C++ kernels where they can run; torch's, with the reason, where they cannot.

    Beside our own kernels torch gets one thread: what is left to it is small, and its OpenMP
    threads would spin at barriers on the cores that our pool works on.
    """
    reason = ops.cpu_unavailable_reason()
    sampler = "cpu" if reason is None else "torch"
    if reason is None and config.head_dim % 8:
        reason = f"head_dim {config.head_dim} is no multiple of 8"
    if reason is not None:
        return KernelChoice(impl="torch", sampler=sampler, reason=reason)
    torch.set_num_threads(1)
    return KernelChoice(impl="cpu", sampler=sampler)

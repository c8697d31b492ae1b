"""How far a start or a drain is, in the words of `/health/*` and of the admin port's status."""

from enum import StrEnum
from typing import Literal

StartFailure = Literal[
    "OutOfMemory",
    "KVCacheTooSmall",
    "DownloadFailed",
    "AuthFailed",
    "UnsupportedModel",
    "InvalidSettings",
]
"""Why an engine does not start. The operator knows each: they are reasons of its conditions too."""


class StartupPhase(StrEnum):
    """Phases of a start, in their order; FAILED may follow each, READY also."""

    SPAWNING = "Spawning"
    """The step process does not answer yet."""
    IMPORTING = "Importing"
    FETCHING = "Fetching"
    """The model's files are on their way to this machine."""
    CONVERTING = "Converting"
    """A .gguf file becomes a model folder."""
    LOADING = "Loading"
    MEASURING = "Measuring"
    """Kernels, or the scales of an FP8 KV cache."""
    PLANNING = "Planning"
    """Memory, and the KV cache in it."""
    READY = "Ready"
    FAILED = "Failed"
    """It did not start, or it has ended."""


class DrainPhase(StrEnum):
    """Phases of a drain, in their order; there is no way back."""

    SERVING = "Serving"
    """No drain has begun."""
    PROPAGATING = "Propagating"
    """Not ready, still accepting."""
    DRAINING = "Draining"
    """Refusing; running requests finish."""
    DRAINED = "Drained"

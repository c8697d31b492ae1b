"""Processes that must not outlive the one that started them."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> None:
    """On Linux the kernel sends this signal when the parent ends, even while a model loads.

    Elsewhere nothing happens: a parent that is killed leaves its children.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)

"""Processes that must not outlive the one that started them."""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> None:
    """On Linux the kernel sends this signal when the parent ends, even while a model loads.

    Elsewhere nothing happens: a parent that is killed leaves its children.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def bound_module(name: str) -> list[str]:
    """The command that runs a module as `python -m` does, for as long as this process lives."""
    return [sys.executable, "-m", __name__, str(os.getpid()), name]


def main(argv: list[str]) -> None:
    """Become the module.

    Args:
        argv: process id of the parent, the module's name, its arguments.
    """
    end_with_parent(signal.SIGKILL)
    if os.getppid() != int(argv[0]):
        return  # it ended before the kernel was asked
    sys.argv = argv[1:]
    runpy.run_module(argv[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])

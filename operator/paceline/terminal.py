"""Output of commands whose reader may go away: a terminal that is closed, a pipe that ends."""

import contextlib
import io
import os
import sys


def say(text: str) -> None:
    """A line for the person, at once."""
    write(text + "\n")


def write(text: str) -> None:
    """Text for the person, at once. A server serves on when nobody reads it any more."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        drop_output()


def tolerate_any_text() -> None:
    """What the terminal's encoding lacks is shown as `?`: a model's answer may hold anything."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def flush() -> None:
    """Before the process ends.

    Raises:
        OSError: what was written cannot be stored or read by anybody; `drop_output` was called.
    """
    try:
        sys.stdout.flush()
    except OSError:
        drop_output()
        raise


def drop_output() -> None:
    """Let what is buffered, and all that follows, go nowhere.

    Otherwise the interpreter tries again when it ends, complains, and exits with 120.
    """
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

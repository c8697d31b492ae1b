"""What a person sees while something takes time: one line per step, on standard error."""

import sys
import time

STARTED = time.monotonic()


def say(text: str) -> None:
    """Write one line with the seconds since the start."""
    sys.stderr.write(f"[{time.monotonic() - STARTED:5.1f} s] {text}\n")
    sys.stderr.flush()

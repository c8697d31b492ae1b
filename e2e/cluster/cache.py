"""Where built things are kept between runs, and the lock that keeps two builders apart."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from cluster.console import say


def cache_root() -> Path:
    """$PACELINE_CACHE/e2e, or ~/.cache/paceline/e2e."""
    base = os.environ.get("PACELINE_CACHE") or Path.home() / ".cache" / "paceline"
    return Path(base).expanduser().resolve() / "e2e"


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel drops it when the process ends, however it ends.

    Args:
        path: the lock file; made with its folders where missing.
        what: named in the message while another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process works on {what}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

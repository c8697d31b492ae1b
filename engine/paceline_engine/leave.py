"""The end of a process that somebody waits for: a client, a kubelet, a person."""

import contextlib
import logging
import os
import sys
from typing import NoReturn


def leave(exit_code: int) -> NoReturn:
    """End without taking modules apart.

    That was 0.5 to 1.4 s of an idle server's end, and takes seconds where torch holds a model.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(exit_code)

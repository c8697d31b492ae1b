"""SHA-256 of a few dozen bytes, as fast as this interpreter has it.

`hashlib` takes OpenSSL's, which since version 3 looks the algorithm up at every call: about twice
the time of the interpreter's own implementation for a block's worth of bytes.
"""

import hashlib
from collections.abc import Callable
from importlib import import_module
from typing import Protocol


class Digest(Protocol):
    """What is used of a hash object."""

    def digest(self) -> bytes:
        """The digest of all data so far."""


def _fastest() -> Callable[[bytes], Digest]:
    for module in ("_sha2", "_sha256"):  # from 3.12 on, before
        try:
            found: Callable[[bytes], Digest] = import_module(module).sha256
        except ImportError:
            continue
        return found
    return hashlib.sha256


sha256 = _fastest()

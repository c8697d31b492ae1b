"""Importing torch for a process that only computes: without what the compiler of torch needs.

A third of the CPU time of `import torch` registers shape functions for tensors without memory,
which only tracing asks for. They are put off: whoever imports that module later gets it whole.
Torch itself is not imported here.
"""

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

_PUT_OFF = "torch._meta_registrations"


@contextlib.contextmanager
def lean_torch() -> Iterator[None]:
    """Whatever imports torch inside imports it without its meta registrations."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules[_PUT_OFF] = stand_in = ModuleType(_PUT_OFF)
    try:
        yield
    finally:
        if sys.modules.get(_PUT_OFF) is stand_in:
            del sys.modules[_PUT_OFF]
        for module in list(sys.modules.values()):
            # `import torch._meta_registrations` and `from torch import ...` left a name behind.
            if vars(module).get("_meta_registrations") is stand_in:
                del module.__dict__["_meta_registrations"]

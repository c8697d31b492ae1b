"""Triton's interpreter for tests: kernels on CPU tensors."""

import os
import sys


def ask_for_interpreter() -> None:
    """Have Triton interpret its kernels in this process and its children.

    Raises:
        RuntimeError: something imported triton before, which reads the variable then.
    """
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton must not be imported before its kernels' tests are collected")
    os.environ["TRITON_INTERPRET"] = "1"

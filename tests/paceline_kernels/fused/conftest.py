"""The kernels under Triton's interpreter, which must be asked for before triton is imported."""

import os
import sys

if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("something imported triton before the tests of its kernels were collected")
os.environ["TRITON_INTERPRET"] = "1"

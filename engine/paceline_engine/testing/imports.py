"""What a process has imported that begins anew, for tests of what start-up pays for."""

import os
import subprocess
import sys
from collections.abc import Iterable


def imported_by(*modules: str, watched: Iterable[str]) -> set[str]:
    """Those of the watched modules that come along when a fresh interpreter imports some."""
    program = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split()) & set(watched)

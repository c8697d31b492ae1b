"""A signal before a server has a loop: an end like any other, and one that is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SLOW_IMPORT = """
import os, signal
os.kill(os.getpid(), signal.{name})
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_during_the_imports_of_a_server_is_told_and_exits_with_zero(
    tmp_path: Path, name: str
) -> None:
    # The signal arrives while the server's third-party imports run: uvicorn stands for them.
    (tmp_path / "uvicorn.py").write_text(SLOW_IMPORT.format(name=name))
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "serve", "nowhere"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert f"{name} before the server listened" in done.stderr


@pytest.mark.slow
def test_ctrl_c_during_the_imports_of_any_command_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text(SLOW_IMPORT.format(name="SIGINT"))
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "run", "-f", "nowhere"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")

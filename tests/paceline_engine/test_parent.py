"""What a process starts for its own needs ends with it, however it ends."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline_engine import parent

SLEEPER = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {__name__}")
time.sleep(60)
"""
OWNER = """
import subprocess, sys
from paceline_engine import parent
subprocess.run([*parent.bound_module("sleeper"), sys.argv[1]])
"""


def until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of a parent's end")
def test_a_killed_process_takes_the_module_it_runs_with_it(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    told = tmp_path / "pid"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(told)], env={**os.environ, "PYTHONPATH": path}
    )
    try:
        deadline = time.monotonic() + 20
        while not (told.exists() and told.read_text()):
            assert time.monotonic() < deadline
            assert owner.poll() is None
            time.sleep(0.01)
        pid, name = told.read_text().split()
        assert name == "__main__"
    finally:
        owner.kill()
        owner.wait()
    assert until_gone(int(pid))


@pytest.mark.slow
def test_a_module_whose_parent_has_ended_already_does_nothing(tmp_path: Path) -> None:
    command = parent.bound_module("this")
    command[3] = str(os.getppid())  # not who starts it
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ""

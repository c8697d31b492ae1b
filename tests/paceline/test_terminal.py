"""Output whose reader has gone: no traceback, no strange exit code, and servers serve on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TWO_LINES = """
import sys
from paceline import terminal
terminal.say("first")
sys.stdin.read()
terminal.say("second")
terminal.say("third")
print("still here", file=sys.stderr)
"""


def command(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, *arguments], check=False, stderr=subprocess.PIPE, text=True, **options
    )


def test_a_line_that_nobody_reads_stops_no_server() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", TWO_LINES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "first\n"
    process.stdout.close()
    _, told = process.communicate("go on")
    assert (process.returncode, told) == (0, "still here\n")


@pytest.mark.parametrize(
    "arguments", [["bench", "workloads"], ["bench", "scheduler", "--json", "--running", "2"]]
)
def test_a_pipe_that_is_closed_ends_a_command_in_silence(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = command("-m", "paceline", *arguments, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_disk_that_is_full_is_told_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = command("-m", "paceline", "bench", "workloads", stdout=full)
    assert done.returncode == 2
    assert done.stderr == "paceline: the system: No space left on device\n"


def test_an_exit_code_survives_that_nobody_reads_the_message() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "serve"], check=False, stderr=writing, stdout=writing
    )
    os.close(writing)
    assert done.returncode == 2


def test_text_that_a_terminal_cannot_show_ends_nothing() -> None:
    code = "from paceline import terminal; terminal.tolerate_any_text(); terminal.say('caf\u00e9')"
    done = command(
        "-c", code, stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert (done.returncode, done.stdout) == (0, "caf?\n")

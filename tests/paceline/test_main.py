"""How the process of a command begins and ends."""

import subprocess
import sys

import pytest

COMMAND = """
import sys
from paceline import __main__

class Owned:
    def __del__(self):
        print("taken apart")

kept = Owned()
sys.argv = ["paceline", *{arguments!r}]
sys.exit(__main__.main())
"""


def ended(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", COMMAND.format(arguments=arguments)],
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", ["serve", "run"])
def test_a_server_ends_without_taking_its_modules_apart(command: str) -> None:
    process = ended(command, "--no-such-flag")
    assert process.returncode == 2
    assert process.stderr.startswith("paceline: ")
    assert "taken apart" not in process.stdout


@pytest.mark.slow
def test_other_commands_end_as_any_program() -> None:
    process = ended("version")
    assert process.returncode == 0
    assert "taken apart" in process.stdout

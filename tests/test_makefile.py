import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def planned(make: str, *arguments: str) -> str:
    """The commands that make would run."""
    clean = {name: value for name, value in os.environ.items() if name != "PORT"}
    return subprocess.run(
        [make, "--dry-run", *arguments],
        cwd=ROOT,
        env=clean,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_demo_takes_a_port(require_program):
    make = require_program("make")
    assert "paceline run -f examples/demo.yaml --port 8080\n" in planned(make, "demo", "PORT=8080")
    assert "--port" not in planned(make, "demo")

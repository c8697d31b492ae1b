"""Running a program and telling what it said when it fails."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.errors import CommandFailed, MissingTool


def run(
    argv: Sequence[str | Path],
    *,
    check: bool = True,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run to the end, with its output captured as text.

    Raises:
        CommandFailed: it exited with another status than 0 (and `check` is set), or took too long.
        MissingTool: there is no such program.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            check=False,
            input=stdin,
            env=env,
            cwd=cwd,
            timeout=timeout_s,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        raise MissingTool(f"{words[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{' '.join(words)} took longer than {timeout_s:g} s") from error
    if check and done.returncode != 0:
        raise CommandFailed(
            f"{' '.join(words)} exited with {done.returncode}:\n"
            f"{done.stderr[-4000:]}{done.stdout[-4000:]}"
        )
    return done

"""`python -m paceline` and the script `paceline`: how the process of a command begins and ends."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command line.

    A server's imports take a while, and SIGTERM during them is an ordinary end: nothing was served
    yet. So its handler comes before them; `lifecycle` takes over once there is a loop. And once it
    has served, its process ends at once: somebody waits for it, a kubelet or a person.
    """
    is_server = sys.argv[1:2] in (["serve"], ["run"])
    if sys.argv[1:2] == ["serve"]:
        signal.signal(signal.SIGTERM, _end_before_start)
    from paceline import cli, terminal
    from paceline_engine.leave import leave

    terminal.tolerate_any_text()
    exit_code = cli.main()
    if is_server:
        leave(exit_code)
    return exit_code


def _end_before_start(_number: int, _frame: FrameType | None) -> None:
    # At once: an exception could end up inside an import that catches it.
    os.write(2, b"paceline: SIGTERM before the server listened; nothing was served; exiting\n")
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

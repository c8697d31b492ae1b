"""`python -m paceline` and the script `paceline`: how the process of a command begins and ends."""

import contextlib
import os
import signal
import sys
from types import FrameType

_EXIT_INTERRUPTED = 130
"""As `errors.EXIT_INTERRUPTED`, which is not imported yet when it is needed."""


def main() -> int:
    """Run the command line.

    A server's imports take a while, and a signal during them is an ordinary end: nothing was served
    yet. So its handlers come before them; `lifecycle` takes over once there is a loop. And once it
    has served, its process ends at once: somebody waits for it, a kubelet or a person.
    """
    is_server = sys.argv[1:2] in (["serve"], ["run"])
    if sys.argv[1:2] == ["serve"]:
        signal.signal(signal.SIGTERM, _end_before_start)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _end_before_start)
    try:
        from paceline import cli, terminal
        from paceline_engine.leave import leave
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED

    terminal.tolerate_any_text()
    exit_code = cli.main()
    if is_server:
        leave(exit_code)
    return exit_code


def _end_before_start(number: int, _frame: FrameType | None) -> None:
    # At once: an exception could end up inside an import that catches it.
    name = signal.Signals(number).name
    told = f"paceline: {name} before the server listened; nothing was served; exiting\n"
    with contextlib.suppress(OSError):
        os.write(2, told.encode())
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

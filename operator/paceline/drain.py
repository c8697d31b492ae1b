"""`paceline drain --pid PID`: phase 1 of a drain, for the preStop hook of a pod.

A pod holds digests of admin tokens and no token, so its hook cannot use the admin port. It may send
a signal to the server, being the same user in the same container: SIGUSR1 begins phase 1 (not
ready, still accepting). This command then waits, because the kubelet sends SIGTERM, which begins
phase 2, as soon as the hook has ended.
"""

import argparse
import http.client
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from paceline import serve
from paceline.errors import EXIT_FAILED, EXIT_OK, CommandError
from paceline_crds import routes
from paceline_crds.phases import DrainPhase

DEFAULT_PROPAGATION_S = 5.0
_POLL_S = 0.1
_PROBE_TIMEOUT_S = 2.0
_PHASE_1_IS_OVER = {DrainPhase.DRAINING, DrainPhase.DRAINED}


def add_command(commands: Any) -> None:
    """Add the parser of `drain`."""
    parser = commands.add_parser(
        "drain",
        help="announce the end of a server on this machine (for preStop hooks)",
        description="Begin phase 1 of a drain: the server is no longer ready and still accepts "
        "requests. Ends when the propagation time is over, and at once when there is nothing to "
        "wait for. SIGTERM then begins phase 2.",
    )
    parser.add_argument(
        "--pid", type=_pid, default=1, help="process of `paceline serve` (default 1)"
    )
    parser.add_argument(
        "--propagation-s",
        type=serve.seconds,
        default=DEFAULT_PROPAGATION_S,
        metavar="S",
        help=f"how long phase 1 lasts (default {DEFAULT_PROPAGATION_S:g})",
    )
    parser.add_argument(
        "--port",
        type=serve.port,
        default=8000,
        metavar="PORT",
        help="the server's public port on this machine, asked whether it has drained (default "
        "8000)",
    )
    parser.set_defaults(handler=drain)


def drain(args: argparse.Namespace) -> int:
    """Send the signal unless the server has drained already, and wait.

    Raises:
        CommandError: no such process, or one that the signal would end.
    """
    if not _is_running(args.pid):
        raise CommandError(f"--pid: there is no process {args.pid}", EXIT_FAILED)
    if _phase(args.port) in _PHASE_1_IS_OVER:
        return EXIT_OK
    if not _handles_sigusr1(args.pid):
        raise CommandError(
            f"--pid: process {args.pid} does not take SIGUSR1, so it is no `paceline serve` that "
            "has begun; nothing was sent",
            EXIT_FAILED,
        )
    os.kill(args.pid, signal.SIGUSR1)
    until_s = time.monotonic() + args.propagation_s
    while (left_s := until_s - time.monotonic()) > 0:
        if not _is_running(args.pid) or _phase(args.port) in _PHASE_1_IS_OVER:
            break
        time.sleep(min(_POLL_S, left_s))
    return EXIT_OK


def _pid(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"a process id is needed, got {text!r}")
    return int(text)


def _is_running(pid: int) -> bool:
    """Whether it lives; one that has ended and that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise CommandError(
            f"--pid: process {pid} belongs to another user; run this as the server's", EXIT_FAILED
        ) from None
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return not Path("/proc/self").exists()  # not Linux: the signal has reached it
    return state not in {"Z", "X"}


def _handles_sigusr1(pid: int) -> bool:
    """Whether a handler is set: without one the signal would end the process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return not Path("/proc/self").exists()  # not Linux: nobody can tell
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)


def _phase(port: int) -> str:
    """What readiness says; empty if the server does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request("GET", routes.HEALTH_READY)
        answer = json.loads(connection.getresponse().read())
        return str(answer.get("reason", ""))
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        return ""
    finally:
        connection.close()

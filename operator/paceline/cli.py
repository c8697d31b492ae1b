"""The command `paceline`: its parser, and what ends it.

Commands import what they need when they run, so that `paceline version` needs no torch and a
mistyped flag is answered at once.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from paceline import bench, draft, drain, fetch, head, render, run, serve, sim, terminal, tune
from paceline.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_START_FAILED,
    EXIT_USAGE,
    CommandError,
)
from paceline.parser import Parser
from paceline_engine.release import version

Handler = Callable[[argparse.Namespace], int]


def build_parser() -> Parser:
    """The whole command line."""
    parser = Parser(
        prog="paceline", description="LLM serving whose scheduler can be turned while it serves."
    )
    parser.add_argument("--version", action="version", version=version())
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=Parser
    )
    for module in (run, serve, drain, render, fetch, bench, sim, tune, draft, head):
        module.add_command(commands)
    told = commands.add_parser("version", help="print the release")
    told.set_defaults(handler=_print_version)
    return parser


def _print_version(_: argparse.Namespace) -> int:
    print(version())
    return EXIT_OK


def main(argv: Sequence[str] | None = None, stderr: TextIO | None = None) -> int:
    """Run one command; returns the exit code."""
    stderr = stderr or sys.stderr
    try:
        args = build_parser().parse_args(argv)
        handler: Handler = args.handler
        exit_code = handler(args)
        terminal.flush()
        return exit_code
    except CommandError as error:
        return _fail(stderr, str(error), error.exit_code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        terminal.drop_output()
        return EXIT_OK
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package.startswith("paceline"):
            raise  # a mistake of ours, and no lack of the machine
        return _fail(
            stderr,
            f"this command needs the package {package}, which is not installed; install "
            "`paceline[engine]`",
            EXIT_START_FAILED,
        )
    except MemoryError as error:
        told = f"this machine has not enough memory for it ({error or 'no more is given'})"
        return _fail(stderr, f"{told}; ask for less", EXIT_FAILED)
    except OSError as error:
        return _fail(stderr, system_error_text(error), EXIT_USAGE)


def system_error_text(error: OSError) -> str:
    """What the system said, and of which file; an error that it did not make has other words."""
    what = error.strerror or str(error) or type(error).__name__
    return f"{error.filename or 'the system'}: {what}"


def _fail(stderr: TextIO, message: str, exit_code: int) -> int:
    with contextlib.suppress(OSError):  # nobody reads it any more; the exit code still tells
        for number, line in enumerate(message.splitlines()):
            print(f"{'paceline: ' if number == 0 else '  '}{line}", file=stderr)
    return exit_code

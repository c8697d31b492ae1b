"""`paceline bench offload MODEL`: a preempted request comes back, with and without a host tier."""

import argparse
import json
import sys
from typing import Any

from paceline.arguments import positive
from paceline.errors import EXIT_OK, EXIT_START_FAILED, CommandError

DEFAULT_BLOCKS = 40


def add_command(kinds: Any) -> None:
    """Add the parser."""
    parser = kinds.add_parser(
        "offload",
        help="a preempted request comes back: loaded from the host against computed again",
        description="Run two requests in a pool that holds one of them: the first grows, the other "
        "loses its blocks and comes back. Once without a host tier, once with one: tokens computed "
        "again, bytes, milliseconds, and whether the tokens are the same.",
    )
    parser.add_argument("model", metavar="MODEL", help="demo, hf://org/name, a folder")
    parser.add_argument(
        "--blocks",
        type=positive,
        default=DEFAULT_BLOCKS,
        metavar="N",
        help=f"KV blocks of 16 tokens; half of them come back (default {DEFAULT_BLOCKS})",
    )
    parser.add_argument(
        "--host-memory", default="1Gi", metavar="BYTES", help="of the host tier (default 1Gi)"
    )
    parser.set_defaults(handler=bench_offload)


def bench_offload(args: argparse.Namespace) -> int:
    """One JSON object to stdout."""
    if args.blocks < 8:
        raise CommandError(f"--blocks must be >= 8, got {args.blocks}")
    from pydantic import ValidationError

    from paceline_engine.bench import offload
    from paceline_engine.core.errors import StartFailed
    from paceline_engine.model import store

    try:
        folder = store.resolve(args.model, progress=lambda _phase, _share: None)
        figures = offload.measure(folder, num_blocks=args.blocks, host_memory=args.host_memory)
    except StartFailed as error:
        raise CommandError(f"{error.reason}: {error}", EXIT_START_FAILED) from error
    except ValidationError as error:
        raise CommandError(f"--host-memory must be a quantity, got {args.host_memory!r}") from error
    tokens = [run.pop("tokens") for run in figures.values()]
    figures["tokens_are_the_same"] = tokens[0] == tokens[1]
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return EXIT_OK

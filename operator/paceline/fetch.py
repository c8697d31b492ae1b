"""`paceline fetch URI`: bring a model onto this machine and print its folder."""

import argparse
import sys
from pathlib import Path
from typing import Any

from paceline.errors import EXIT_OK, EXIT_START_FAILED, CommandError
from paceline.serve import CACHE_DEFAULT


def add_command(commands: Any) -> None:
    """Add the parser of `fetch`."""
    parser = commands.add_parser(
        "fetch",
        help="download or convert a model once and print its folder",
        description="Download or convert a model once and print its folder.",
    )
    parser.add_argument("uri", metavar="URI", help="demo, hf://org/name[@revision], a .gguf file")
    parser.add_argument(
        "--cache-dir", type=Path, metavar="FOLDER", help=f"where models are kept {CACHE_DEFAULT}"
    )
    parser.set_defaults(handler=fetch)


def fetch(args: argparse.Namespace) -> int:
    """Progress goes to stderr, the folder alone to stdout."""
    from paceline_engine.core.errors import StartFailed
    from paceline_engine.model import store

    said = ""

    def progress(phase: str, share: float) -> None:
        nonlocal said
        line = f"{phase} {share:4.0%}"
        if phase == "wait":
            line = "another process makes it; waiting for its end"
        if line != said:
            said = line
            print(line, file=sys.stderr, flush=True)

    try:
        folder = store.resolve(args.uri, cache_dir=args.cache_dir, progress=progress)
    except StartFailed as error:
        raise CommandError(f"{error.reason}: {error}", EXIT_START_FAILED) from error
    print(folder)
    return EXIT_OK

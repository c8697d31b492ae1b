"""What the parts of `paceline bench` that talk to a server have in common: flags and readers."""

import sys
from pathlib import Path
from typing import Any

from paceline.arguments import positive, seed, text_in
from paceline.errors import CommandError

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_ADMIN_URL = "http://127.0.0.1:8001"


def add_server(parser: Any) -> None:
    """Which server, and what every load on it needs."""
    add = parser.add_argument
    add("--base-url", default=DEFAULT_URL, metavar="URL", help=f"default {DEFAULT_URL}")
    add("--model", default="", metavar="NAME", help="default: the first of /v1/models")
    add(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help="a tokenizer.json or its folder: prompts of its words (default: random token ids)",
    )
    add(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with the key to send (default: none)",
    )
    add("--seed", type=seed, default=1234, help="of the workloads (default 1234)")
    add(
        "--steady-tokens",
        type=positive,
        default=0,
        metavar="N",
        help="output tokens of the steady streams of interference and steady_only (default: the "
        "workload's own)",
    )
    add("--json", action="store_true", help="JSON in place of a table, a line for each row")


def add_admin(parser: Any) -> None:
    """Where its admin port is."""
    add = parser.add_argument
    add(
        "--admin-url", default=DEFAULT_ADMIN_URL, metavar="URL", help=f"default {DEFAULT_ADMIN_URL}"
    )
    add(
        "--admin-token-file",
        type=Path,
        metavar="FILE",
        help="with the admin token (default: none)",
    )


def vocabulary(tokenizer: Path | None) -> Any:
    """What prompts are made of."""
    from paceline_engine.bench.workloads import Vocabulary

    return Vocabulary.from_tokenizer(tokenizer) if tokenizer else Vocabulary.random_ids()


def secret_in(file: Path | None, flag: str) -> str:
    """The first line of a file that is no comment; empty without a file.

    Raises:
        CommandError: it cannot be read, or holds no line.
    """
    if file is None:
        return ""
    lines = [line.strip() for line in text_in(file, flag).splitlines()]
    given = [line for line in lines if line and not line.startswith("#")]
    if not given:
        raise CommandError(f"{flag}: {file} must hold a line, got an empty file")
    if not (given[0].isascii() and given[0].isprintable()):
        raise CommandError(f"{flag}: {file} must hold printable ASCII, got other characters")
    return given[0]


def write_line(text: str) -> None:
    """To standard output, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()

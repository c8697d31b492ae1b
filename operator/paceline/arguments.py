"""Values of flags that several commands take: numbers for argparse, and files with text."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.errors import CommandError

Add = Callable[..., Any]
"""`add_argument` of a parser or of a group of flags."""
MAX_SEED = 2**63 - 1


def positive(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number >= 1 is needed, got {text!r}")
    return int(text)


def seed(text: str) -> int:
    """A seed of a random generator, for argparse."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > MAX_SEED:
        raise argparse.ArgumentTypeError(f"a whole number from 0 to {MAX_SEED}, got {text!r}")
    return int(text)


def not_negative(text: str) -> float:
    """A finite number from 0 on, for argparse."""
    value = _finite(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"a number >= 0 is needed, got {text!r}")
    return value


def above_zero(text: str) -> float:
    """A finite number above 0, for argparse."""
    value = _finite(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"a number > 0 is needed, got {text!r}")
    return value


def text_in(file: Path, flag: str) -> str:
    """What a file says.

    Raises:
        CommandError: it cannot be read, or is no UTF-8 text.
    """
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{flag}: {file} must be UTF-8 text, got other bytes") from error
    except OSError as error:
        raise CommandError(
            f"{flag}: {file} must be a file that can be read, got: {error.strerror}"
        ) from error


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if abs(value) < float("inf") else -1.0

"""The argument parser of every command."""

import argparse
import difflib
from typing import Any, NoReturn

from paceline.errors import CommandError


class Parser(argparse.ArgumentParser):
    """A parser whose errors are exceptions, and which takes no abbreviated flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Called by argparse, for a command's own parser too: what it does not know ends here.

        argparse would hand it up to the first parser, whose help does not list the command's flags.
        """
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown[0])}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """Called by argparse."""
        raise CommandError(f"{message}; `{self.prog} --help` lists what it takes")

    def _meant(self, unknown: str) -> str:
        flag = unknown.partition("=")[0]
        close = difflib.get_close_matches(flag, self._option_string_actions, n=1)
        return f" (did you mean {close[0]}?)" if close and flag.startswith("-") else ""

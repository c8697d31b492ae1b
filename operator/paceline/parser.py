"""The argument parser of every command."""

import argparse
from typing import Any, NoReturn

from paceline.errors import CommandError


class Parser(argparse.ArgumentParser):
    """A parser whose errors are exceptions, and which takes no abbreviated flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """Called by argparse."""
        raise CommandError(f"{message}; `{self.prog} --help` lists what it takes")

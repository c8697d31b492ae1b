"""`python -m paceline_operator.shell.admin_token`: a deployment's admin token, for a person.

Nothing in an engine's pod may open its admin port, so this runs where the master key is: in the
operator's pod, or beside an operator on a laptop. The object comes on standard input as
`kubectl get -o json` prints it, because the token holds its uid and a person would mistype that.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from paceline_operator.resources import config, objects
from paceline_operator.resources.config import InvalidConfig
from paceline_operator.shell import keys
from paceline_operator.shell.errors import StartRefused
from paceline_operator.shell.keys import MasterKeys

CONFIG_OF_CHART = Path("/etc/paceline/operator/config.yaml")
EXIT_OK, EXIT_USAGE = 0, 2


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m paceline_operator.shell.admin_token",
        description="Print the admin token of the LLMDeployment on standard input "
        "(kubectl get llmdep NAME -o json).",
    )
    made.add_argument(
        "--config",
        type=Path,
        default=CONFIG_OF_CHART,
        metavar="FILE",
        help=f"the operator's; names the master key (default {CONFIG_OF_CHART})",
    )
    made.add_argument(
        "--master-key-file",
        type=Path,
        metavar="FILE",
        help="the master key itself (default: what --config names)",
    )
    return made


def main(argv: Sequence[str] | None = None, stdin: TextIO | None = None) -> int:
    """Print one token; the status for the shell."""
    arguments = parser().parse_args(argv)
    try:
        deployment = _deployment((stdin or sys.stdin).read())
        token, *_ = _keys(arguments.config, arguments.master_key_file).tokens(deployment)
    except StartRefused as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    sys.stdout.write(f"{token}\n")
    return EXIT_OK


def _keys(file: Path, master_key_file: Path | None) -> MasterKeys:
    if master_key_file is not None:
        made = MasterKeys(master_key_file)
        made.check()
        return made
    try:
        return keys.of_config(config.parse(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, InvalidConfig) as error:
        raise StartRefused(f"{file}: {error}") from error


def _deployment(text: str) -> dict[str, Any]:
    """One object with all that its token is made of.

    Raises:
        StartRefused: it is something else; a token of nothing would open nothing.
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    names = ("namespace", "name", "uid")
    if objects.text(found, "kind") != "LLMDeployment" or not all(
        objects.text(found, "metadata", name) for name in names
    ):
        raise StartRefused(
            "standard input must be one LLMDeployment of a cluster as JSON; give it what "
            "`kubectl get llmdep NAME -o json` prints"
        )
    return dict(found)


if __name__ == "__main__":
    sys.exit(main())

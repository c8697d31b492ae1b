"""What is asked of `paceline bench` before anything is measured."""

from pathlib import Path

import pytest

from paceline import cli
from paceline.errors import CommandError


@pytest.mark.parametrize("flag", ["--api-key-file", "--admin-token-file"])
def test_a_file_without_a_secret_is_told_under_its_own_flag(tmp_path: Path, flag: str) -> None:
    empty = tmp_path / "empty"
    empty.write_text("# nothing but a comment\n", encoding="utf-8")
    args = cli.build_parser().parse_args(["bench", "sim", "--model", "m", flag, str(empty)])
    with pytest.raises(CommandError, match=f"^{flag}: .*empty must hold a line"):
        args.handler(args)

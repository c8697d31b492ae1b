"""The help of every command tells of every flag what holds without it."""

import argparse
from collections.abc import Iterator

import pytest

from paceline import cli
from paceline_crds.settings import EngineSettings, knobs
from paceline_engine.serve.config import ServeConfig
from paceline_operator.shell import options


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in inner:
        for command in action.choices.values():
            yield from commands(command)
    if not inner:
        yield parser


def flags_with_a_value() -> Iterator[tuple[str, argparse.Action]]:
    for parser in (*commands(cli.build_parser()), options.parser()):
        for action in parser._actions:
            takes_value = action.nargs != 0 or isinstance(action, argparse.BooleanOptionalAction)
            is_hidden = action.help == argparse.SUPPRESS
            if action.option_strings and takes_value and not action.required and not is_hidden:
                yield f"{parser.prog} {action.option_strings[0]}", action


FLAGS = dict(flags_with_a_value())


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_says_its_default(flag: str) -> None:
    action = FLAGS[flag]
    text = (action.help or "").lower()
    assert "default" in text
    default = _default_of(flag, action)
    written = default if isinstance(default, list | tuple) else [default]
    for value in written:
        if value and not isinstance(value, bool):  # 0 and nothing have a meaning, told in words
            shown = f"{value:g}" if isinstance(value, float) else str(value).lower()
            assert shown in text


def _default_of(flag: str, action: argparse.Action) -> object:
    """What holds without the flag, as far as it is a value."""
    if action.default is not argparse.SUPPRESS:
        return action.default
    if action.dest in knobs():
        return EngineSettings.model_fields[action.dest].default
    return ServeConfig.__dataclass_fields__[action.dest].default


def test_every_command_is_looked_at() -> None:
    assert {flag.split(" --")[0] for flag in FLAGS} >= {
        "paceline serve",
        "paceline bench serve",
        "python -m paceline_operator",
    }

"""Admin tokens come from the master key and the identity of a deployment."""

import hashlib
from pathlib import Path

import pytest

from paceline_operator.shell import keys
from paceline_operator.shell.errors import StartRefused
from paceline_operator.shell.keys import MasterKeys


def deployment(uid: str = "u1") -> dict[str, dict[str, str]]:
    return {"metadata": {"namespace": "models", "name": "demo", "uid": uid}}


def test_a_token_belongs_to_one_object_for_its_life(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k" * 32 + "\n")
    made = MasterKeys(file)
    (token,) = made.tokens(deployment())
    assert made.tokens(deployment()) == (token,)
    assert made.tokens(deployment("u2")) != (token,)
    assert keys.digests((token,)) == (hashlib.sha256(token.encode()).hexdigest(),)


def test_while_keys_are_replaced_both_tokens_count_the_newest_first(tmp_path: Path) -> None:
    current, previous = tmp_path / "current", tmp_path / "previous"
    current.write_text("a" * 32)
    made = MasterKeys(current, previous)
    (old,) = made.tokens(deployment())
    previous.write_text("a" * 32)
    current.write_text("b" * 32)
    new, second = made.tokens(deployment())
    assert (second, new != old) == (old, True)


def test_a_previous_key_that_is_short_or_the_same_makes_no_second_token(tmp_path: Path) -> None:
    current, previous = tmp_path / "current", tmp_path / "previous"
    current.write_text("a" * 32)
    made = MasterKeys(current, previous)
    for text in ("", "short", "a" * 32 + "\n"):
        previous.write_text(text)
        assert len(made.tokens(deployment())) == 1


def test_a_key_that_is_short_or_missing_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "key"
    with pytest.raises(StartRefused, match="cannot be read"):
        MasterKeys(file).check()
    file.write_text("short")
    with pytest.raises(StartRefused, match="at least 16 bytes, got 5"):
        MasterKeys(file).check()

"""The fast SHA-256 is SHA-256."""

import hashlib

import pytest

from paceline_engine.core.digest import sha256


@pytest.mark.parametrize("length", [0, 1, 55, 56, 64, 96, 4096])
def test_digests_are_those_of_the_standard(length: int) -> None:
    data = bytes(range(256)) * 16
    assert sha256(data[:length]).digest() == hashlib.sha256(data[:length]).digest()

"""Admin tokens, derived from master keys that are mounted as files: no right on Secrets is needed.

A deployment's token is HMAC-SHA256(master key, namespace/name/uid), so one that leaks opens the
engines of one deployment alone, and none once it was deleted. Pods get digests of the accepted
tokens; with a previous key two tokens are accepted, so a key can be replaced without a gap.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline_operator.resources import objects
from paceline_operator.resources.config import OperatorConfig
from paceline_operator.shell.errors import StartRefused

MIN_BYTES = 16


class MasterKeys:
    """The files, read at every use: a mounted Secret that changes counts at once."""

    def __init__(self, current: Path, previous: Path | None = None) -> None:
        self._current = current
        self._previous = previous

    def check(self) -> None:
        """For the start.

        Raises:
            StartRefused: the current key cannot be used.
        """
        try:
            key = self._current.read_bytes().strip()
        except OSError as error:
            raise StartRefused(f"the master key of admin tokens cannot be read: {error}") from error
        self._enough(key)

    def _enough(self, key: bytes) -> bytes:
        if len(key) < MIN_BYTES:
            raise StartRefused(
                f"the master key in {self._current} must have at least {MIN_BYTES} bytes, got "
                f"{len(key)}; make one with `openssl rand -hex 32`"
            )
        return key

    def tokens(self, deployment: Mapping[str, Any]) -> tuple[str, ...]:
        """Accepted tokens of an LLMDeployment, newest first.

        Raises:
            OSError: the current key cannot be read any more.
            StartRefused: it has become too short: tokens made of it could be guessed.
        """
        found = [self._enough(self._current.read_bytes().strip())]
        if self._previous is not None and self._previous.is_file():
            previous = self._previous.read_bytes().strip()
            if len(previous) >= MIN_BYTES and previous != found[0]:
                found.append(previous)
        namespace = objects.text(deployment, "metadata", "namespace")
        who = f"{namespace}/{objects.name(deployment)}/{objects.uid(deployment)}".encode()
        return tuple(hmac.new(key, who, hashlib.sha256).hexdigest() for key in found)


def of_config(found: OperatorConfig) -> MasterKeys:
    """The keys that a configuration names.

    Raises:
        StartRefused: it names none, or one that cannot be used.
    """
    tokens = found.admin_tokens
    if not tokens.master_key_file:
        raise StartRefused(
            "no master key for admin tokens: set adminTokens.masterKeyFile or --master-key-file; "
            "make one with `openssl rand -hex 32`"
        )
    previous = tokens.previous_master_key_file
    made = MasterKeys(Path(tokens.master_key_file), Path(previous) if previous else None)
    made.check()
    return made


def digests(tokens: Sequence[str]) -> tuple[str, ...]:
    """What pods know of tokens."""
    return tuple(hashlib.sha256(token.encode()).hexdigest() for token in tokens)

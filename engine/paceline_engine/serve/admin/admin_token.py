"""Who may use the admin port: bearer tokens, known by their SHA-256 digests."""

import hashlib
import hmac
import re
from pathlib import Path

from paceline_engine.core.errors import StartFailed
from paceline_engine.serve.config import ServeConfig

MAX_DIGESTS = 2
"""Two, so that a token can be replaced without a moment in which neither works."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class AdminTokens:
    """Accepted tokens, from the file that the config names.

    The file is read at every check: it is tiny, the calls are rare, and a mounted file that is
    replaced (rotation) counts at once.
    """

    def __init__(self, config: ServeConfig) -> None:
        if config.admin_token_file is not None and config.admin_token_sha256_file is not None:
            raise StartFailed(
                "InvalidSettings",
                "--admin-token-file and --admin-token-sha256-file exclude each other; give one",
            )
        self._token_file = config.admin_token_file
        self._digest_file = config.admin_token_sha256_file

    @property
    def is_configured(self) -> bool:
        """Whether callers have to show a token at all."""
        return self._token_file is not None or self._digest_file is not None

    def check_readable(self) -> None:
        """For the start: a file that cannot be used must not be found out at the first call.

        Raises:
            StartFailed: InvalidSettings, naming the file.
        """
        try:
            self._digests()
        except (OSError, ValueError) as error:
            flag = "--admin-token-file" if self._token_file else "--admin-token-sha256-file"
            raise StartFailed("InvalidSettings", f"{flag}: {_why(error)}") from error

    def accepts(self, token: str) -> bool:
        """Whether this token opens the port; compared in constant time.

        Raises:
            OSError, ValueError: the file went away or holds something else now.
        """
        shown = hashlib.sha256(token.encode()).hexdigest()
        # No early end: the time must not tell which digest matched.
        return any([hmac.compare_digest(shown, digest) for digest in self._digests()])  # noqa: C419 - see above

    def _digests(self) -> list[str]:
        if self._token_file is not None:
            token = _read(self._token_file).strip()
            if not token:
                raise ValueError(f"{self._token_file} is empty; write one token into it")
            return [hashlib.sha256(token.encode()).hexdigest()]
        if self._digest_file is None:
            return []
        digests = _read(self._digest_file).lower().split()
        if not 1 <= len(digests) <= MAX_DIGESTS or not all(map(_DIGEST.fullmatch, digests)):
            raise ValueError(
                f"{self._digest_file} must hold 1 to {MAX_DIGESTS} SHA-256 digests of 64 hex "
                f"digits, one a line, got {len(digests)} words; write the digests of the accepted "
                "tokens into it (`printf %s TOKEN | sha256sum`)"
            )
        return digests


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename} must be a file that can be read, got: {error.strerror}"
    if isinstance(error, UnicodeDecodeError):
        return "it must be UTF-8 text, got other bytes; write the token or its digests into it"
    return str(error)

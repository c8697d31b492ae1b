"""API keys: who may ask, and who is charged."""

import hashlib
import hmac
import logging
import re
from pathlib import Path

from paceline_crds import routes
from paceline_engine.core.errors import StartFailed
from paceline_engine.serve.openai.errors import ApiError

_LOG = logging.getLogger(__name__)
_HASHED = re.compile(r"([^\s:]{1,128}):([0-9a-fA-F]{64})")
_TENANT = re.compile(r"[a-zA-Z0-9][-._a-zA-Z0-9]{0,62}")
_LINE = "a line `name:sha256` (64 hex digits; `printf %s KEY | sha256sum`) or the plain key"
_FREE = (routes.HEALTH, routes.METRICS, routes.VERSION)


class ApiKeys:
    """Accepted keys, from a file that is read again when it changes.

    A line is `name:sha256-of-the-key` (hex) or a plain key; empty lines and lines that begin with #
    are skipped. The name is the tenant; a plain key's is `key-` and the first digits of its hash.

    Raises:
        StartFailed: InvalidSettings, the file cannot be read or has no key.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._is_broken = False
        self._keys: list[tuple[str, bytes]] = []
        try:
            self._reload()
        except (OSError, ValueError) as error:
            raise StartFailed("InvalidSettings", f"--api-key-file: {_why(path, error)}") from error

    def tenant_of(self, key: str) -> str | None:
        """Whose key this is; None for nobody's. Takes the same time for every wrong key."""
        self._refresh()
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        found = None
        for name, accepted in self._keys:
            if hmac.compare_digest(digest, accepted):
                found = name
        return found

    def _refresh(self) -> None:
        """A file that is being replaced, or is broken, leaves the keys as they were."""
        try:
            self._reload()
        except (OSError, ValueError) as error:
            if not self._is_broken:
                _LOG.warning("API keys stay as they were: %s", _why(self._path, error))
            self._is_broken = True

    def _reload(self) -> None:
        stat = self._path.stat()
        stamp = (stat.st_mtime_ns, stat.st_ino)
        if stamp == self._stamp:
            return
        keys = []
        lines = self._path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(map(str.strip, lines), start=1):
            if line and not line.startswith("#"):
                keys.append(_parse(line, f"{self._path}, line {number}"))
        if not keys:
            raise ValueError(
                f"{self._path} must hold at least one key, got none; write {_LINE} for each client"
            )
        self._keys, self._stamp, self._is_broken = keys, stamp, False


class Guard:
    """Asks for a key where one is needed.

    Args:
        keys: None asks for none.
        metrics_require_key: `/metrics` is not free.
        trusts_tenant_header: who may ask may also say for whom, in a header.
    """

    def __init__(
        self,
        keys: ApiKeys | None,
        *,
        metrics_require_key: bool = False,
        trusts_tenant_header: bool = False,
    ) -> None:
        self._keys = keys
        self._trusts_header = trusts_tenant_header
        self._free = tuple(p for p in _FREE if p != routes.METRICS or not metrics_require_key)

    def tenant(self, path: str, authorization: str | None, named: str = "") -> str:
        """The tenant of a request; empty if nobody is asked.

        Args:
            path: of the request.
            authorization: header with the key.
            named: header with the tenant; it counts only if it is trusted.

        Raises:
            ApiError: 401 for the key, 400 for a name that no tenant has.
        """
        if any(path == free or path.startswith(free + "/") for free in self._free):
            return ""
        owner = "" if self._keys is None else self._owner(self._keys, authorization)
        if not self._trusts_header or not named:
            return owner
        if not _TENANT.fullmatch(named):
            raise ApiError(
                400,
                f"the header {routes.TENANT_HEADER} must be 1 to 63 letters, digits, dots, dashes "
                f"and underscores that begin with a letter or digit, got {named[:64]!r}",
                code="invalid_tenant",
            )
        return named

    def _owner(self, keys: ApiKeys, authorization: str | None) -> str:
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _unauthorised("an API key is needed; send it as `Authorization: Bearer KEY`")
        tenant = keys.tenant_of(key.strip())
        if tenant is None:
            raise _unauthorised("the API key is not accepted here")
        return tenant


def _parse(line: str, place: str) -> tuple[str, bytes]:
    if match := _HASHED.fullmatch(line):
        return match[1], bytes.fromhex(match[2])
    if ":" in line:
        # The line itself may hold a secret: it is not shown.
        raise ValueError(
            f"{place}: expected name:sha256 with 64 hex digits, or a key without ':', got "
            f"something else with a ':'; write {_LINE}"
        )
    digest = hashlib.sha256(line.encode())
    return f"key-{digest.hexdigest()[:8]}", digest.digest()


def _why(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"{path} must be a file that can be read, got: {error.strerror}; check the path"
    if isinstance(error, UnicodeDecodeError):
        return f"{path} must be UTF-8 text, got other bytes; write {_LINE} for each client"
    return str(error)


def _unauthorised(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

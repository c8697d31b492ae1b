"""What can go wrong at the operator's borders, one class per reaction."""

from collections.abc import Mapping
from typing import Any

CONFLICT = 409
INVALID = 422


class ShellError(Exception):
    """Root of all of them."""


class StartRefused(ShellError):
    """The operator cannot start as it was told to; the message says what to change."""


class LoginFailed(ShellError):
    """There are no credentials for the API server."""


class ApiRefused(ShellError):
    """The API server answered with an error.

    Attributes:
        code: HTTP status.
        reason: `Status.reason`, such as Conflict; empty if there was none.
        message: the server's words.
    """

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message

    @classmethod
    def of_status(cls, code: int, body: Mapping[str, Any] | str) -> "ApiRefused":
        """From an answer of the server, which may be no Status."""
        if isinstance(body, str):
            return cls(code, "", body[:500])
        return cls(code, str(body.get("reason") or ""), str(body.get("message") or ""))


class WatchFailed(ShellError):
    """A watch cannot go on, as of a kind that is gone: the process ends, to begin anew."""


class ApiUnreachable(ShellError):
    """No answer came: nobody knows whether the write was done."""


class EngineRefused(ShellError):
    """An engine's admin port said no."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class EngineUnreachable(ShellError):
    """An engine's admin port does not answer."""


class PrometheusFailed(ShellError):
    """Prometheus did not answer, or refused a query.

    Attributes:
        reason: of the condition MetricsAvailable.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class LeaseLost(ShellError):
    """Somebody else may act now; this process must not."""

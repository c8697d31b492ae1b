"""Errors of the engine: one root, one subclass for each reaction."""

from paceline_crds.phases import StartFailure


class EngineError(Exception):
    """Root of everything the engine raises on purpose."""


class SettingRefused(EngineError):
    """A settings change was not applied; nothing of it was.

    Attributes:
        status: 400 outside the bounds, 409 needs a restart, 412 stale revision.
        field: camelCase name of the setting at fault, empty when none is.
    """

    def __init__(self, status: int, field: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.field = field


class StartFailed(EngineError):
    """The engine cannot start with this model on this machine.

    Attributes:
        reason: for programs; the message is for people.
    """

    def __init__(self, reason: StartFailure, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class OutOfBlocks(EngineError):
    """More KV blocks were asked for than can be allocated now; the pool is unchanged.

    Attributes:
        wanted, available: blocks asked for and blocks that could be had.
    """

    def __init__(self, wanted: int, available: int) -> None:
        super().__init__(
            f"{wanted} KV blocks wanted, {available} can be allocated; preempt or wait"
        )
        self.wanted = wanted
        self.available = available

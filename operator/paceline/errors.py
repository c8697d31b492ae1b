"""What ends a command: a message for the person and an exit code, never a traceback."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_START_FAILED = 3
EXIT_INTERRUPTED = 130


class CommandError(Exception):
    """A command cannot go on; the person reads the message.

    Attributes:
        exit_code: of the process.
    """

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code

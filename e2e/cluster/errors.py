"""What can go wrong with a cluster, by the reaction it asks for."""


class ClusterError(Exception):
    """Root of all errors here; the command prints the message and exits 1."""


class MissingTool(ClusterError):
    """Something must be installed first."""


class MissingRight(ClusterError):
    """This machine does not let us have nodes."""


class CommandFailed(ClusterError):
    """A program exited with an error; the message carries its output."""


class NotReady(ClusterError):
    """A condition did not come true in time."""

"""What can go wrong with a cluster, by the reaction it asks for."""


class ClusterError(Exception):
    """Root of all errors here; the command prints the message and exits 1."""


class MissingTool(ClusterError):  # noqa: N818 - names say what happened, as elsewhere here
    """Something must be installed first."""


class CommandFailed(ClusterError):  # noqa: N818
    """A program exited with an error; the message carries its output."""


class NotReady(ClusterError):  # noqa: N818
    """A condition did not come true in time."""

"""Ports of loopback for servers that tests start."""

import socket


def free_port() -> int:
    """A port that is free now; nobody keeps it until the server takes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])

"""The two listening sockets, opened before anything slow so that a taken port is told at once."""

import errno
import logging
import socket
from dataclasses import dataclass

from paceline_engine.core.errors import StartFailed
from paceline_engine.serve.admin.admin_token import AdminTokens
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.loopback import is_loopback

log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_BACKLOG = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Bound and listening, owned by whoever serves on them."""

    public: socket.socket
    admin: socket.socket

    def close(self) -> None:
        """Refuse connections from now on."""
        self.public.close()
        self.admin.close()


def open_listeners(config: ServeConfig) -> Listeners:
    """Bind both ports.

    Raises:
        StartFailed: InvalidSettings, naming the port that cannot be had and why.
    """
    tokens = AdminTokens(config)
    tokens.check_readable()
    admin_host = admin_host_of(config.admin_host, has_token=tokens.is_configured)
    if admin_host != config.admin_host:
        log.warning(
            "the admin port listens on %s only, not on %s: no admin token is configured "
            "(--admin-token-file or --admin-token-sha256-file)",
            admin_host,
            config.admin_host,
        )
    public = _listen(config.host, config.port, "--port")
    try:
        admin = _listen(admin_host, config.admin_port, "--admin-port")
    except StartFailed:
        public.close()
        raise
    return Listeners(public=public, admin=admin)


def admin_host_of(asked: str, *, has_token: bool) -> str:
    """Where the admin port listens: as asked, but without a token never beyond loopback."""
    return asked if has_token or is_loopback(asked) else _LOOPBACK


def url_of(listener: socket.socket) -> str:
    """A URL that reaches this listener from this machine."""
    host, port = listener.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        host = _LOOPBACK
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen(host: str, port: int, flag: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartFailed(
            "InvalidSettings", f"{flag}: {host}:{port} is no address to listen on: {error}"
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        why = (
            "the port is in use; stop the other program or choose another port"
            if error.errno == errno.EADDRINUSE
            else str(error)
        )
        raise StartFailed("InvalidSettings", f"{flag}: {host}:{port}: {why}") from error
    return listener

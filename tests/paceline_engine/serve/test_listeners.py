import logging
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from paceline_engine.core.errors import StartFailed
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.listeners import admin_host_of, open_listeners, url_of

CONFIG = ServeConfig(model="tiny", port=0, admin_port=0)


def test_both_ports_listen_on_what_was_asked() -> None:
    opened = open_listeners(CONFIG)
    for listener in (opened.public, opened.admin):
        socket.create_connection(listener.getsockname()).close()
    assert url_of(opened.public) == f"http://127.0.0.1:{opened.public.getsockname()[1]}"
    opened.close()


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_a_taken_port_is_named_with_its_flag(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        name = "port" if flag == "--port" else "admin_port"
        with pytest.raises(StartFailed, match=f"^{flag}: 127.0.0.1:{port}: the port is in use"):
            open_listeners(replace(CONFIG, **{name: port}))


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(StartFailed, match="no address to listen on"):
        open_listeners(replace(CONFIG, host="no.such.host.invalid"))


@pytest.mark.parametrize(
    ("asked", "has_token", "expected"),
    [
        ("0.0.0.0", False, "127.0.0.1"),
        ("::", False, "127.0.0.1"),
        ("10.1.2.3", False, "127.0.0.1"),
        ("0.0.0.0", True, "0.0.0.0"),
        ("127.0.0.1", True, "127.0.0.1"),
        ("localhost", False, "localhost"),
        ("::1", False, "::1"),
    ],
)
def test_without_a_token_the_admin_port_stays_on_loopback(
    asked: str, has_token: bool, expected: str
) -> None:
    assert admin_host_of(asked, has_token=has_token) == expected


def test_a_narrowed_admin_port_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        opened = open_listeners(replace(CONFIG, admin_host="0.0.0.0"))
    assert opened.admin.getsockname()[0] == "127.0.0.1"
    assert "no admin token is configured" in caplog.text
    opened.close()


def test_with_a_token_the_admin_port_listens_where_it_was_asked(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    opened = open_listeners(replace(CONFIG, admin_host="0.0.0.0", admin_token_file=token))
    assert opened.admin.getsockname()[0] == "0.0.0.0"
    opened.close()

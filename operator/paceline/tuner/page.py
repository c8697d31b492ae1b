"""The page of a fleet: what `paceline tune` finds, looked at anew while somebody looks at it.

It reads and changes nothing, and asks Prometheus only while somebody asks it. Styles, charts and
parts are those of an engine's own page; nothing is built and nothing comes from elsewhere.
"""

import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET, AF_INET6
from socketserver import TCPServer
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from paceline.errors import EXIT_USAGE, CommandError
from paceline.tuner import figures, fleet, look
from paceline.tuner.fleet import Fleet, ReplicaSet
from paceline.tuner.look import Asked
from paceline.tuner.prometheus import Prometheus
from paceline_engine.serve import listeners
from paceline_engine.serve.admin import page_files
from paceline_engine.serve.loopback import is_loopback
from paceline_operator.decide.tuning.queries import Scope

_SHARED = ("page.css", "chart.js", "figures.js", "parts.js", "icon.svg")
_FILES = {name: page_files.FOLDER / name for name in _SHARED} | page_files.of(
    Path(__file__).parent / "ui"
)
_LOOKS_A_WINDOW = 8
_IDLE_S = 10.0


class Watcher:
    """What the page shows. Mutable: keeps the last look, and the last one that found something.

    Args:
        selector: of all engines.
        asked: targets and settings of all of them.
        clock: the time that is looked at, seconds since the epoch.
        ticks: seconds that only grow.
    """

    def __init__(
        self,
        prometheus: Prometheus,
        selector: str,
        asked: Asked,
        *,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prometheus, self._selector, self._asked = prometheus, selector, asked
        self._clock, self._ticks, self._lock = clock, ticks, Lock()
        self._every_s = max(1.0, asked.window_s / _LOOKS_A_WINDOW)
        self._span_s = max(1, asked.window_s // 2)
        self._answer: dict[str, Any] = {
            "at": None,
            "everyS": self._every_s,
            "windowS": asked.window_s,
            "windows": look.WINDOWS,
            "spanS": self._span_s,
            "points": figures.POINTS,
            "sets": [],
        }
        self._looked_at = float("-inf")

    def answer(self) -> dict[str, Any]:
        """Everything, as of an eighth of a window ago at most.

        Where Prometheus does not answer or knows no engine, `problem` says so and the rest is what
        was found last.
        """
        with self._lock:
            if self._ticks() - self._looked_at >= self._every_s:
                self._answer = {**self._answer, **self._look()}
                self._looked_at = self._ticks()
            return self._answer

    def _look(self) -> dict[str, Any]:
        now, window_s = self._clock(), self._asked.window_s
        try:
            found = fleet.replica_sets(self._prometheus, self._selector, window_s, now)
            return {"at": now, "problem": "", "sets": [self._of(one, now) for one in found]}
        except CommandError as error:
            return {"problem": str(error)}

    def _of(self, one: ReplicaSet, now: float) -> dict[str, Any]:
        found = fleet.find(self._prometheus, one.selector, self._asked.window_s, now)
        where = (self._prometheus, found.scope, self._span_s, now)
        each = figures.of_each(*where)
        return {
            "name": one.name,
            "selector": one.selector,
            "now": figures.now(*where),
            "engines": [
                {"name": name, **each.get(engine, {})} for engine, name in one.engines.items()
            ],
            "course": figures.course(*where),
            **self._diagnosed(found, now),
        }

    def _diagnosed(self, found: Fleet, now: float) -> dict[str, Any]:
        targets = self._asked.rules(found).targets
        shown = {"targets": {name: target.limit_s for name, target in targets.items()}}
        try:
            seen = look.at(self._prometheus, found, self._asked, now)
            settings = self._asked.known(found).settings
        except CommandError as error:
            return {**shown, "settings": {}, "diagnosis": {"problem": str(error)}}
        return {**shown, "settings": settings, "diagnosis": {"problem": "", **seen.as_json()}}


def serve(
    prometheus: Prometheus,
    selector: str,
    asked: Asked,
    *,
    address: tuple[str, int],
    at: float | None = None,
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        prometheus: where it looks.
        selector: of all engines.
        asked: targets and settings of all of them.
        address: host and port; port 0 is any that is free.
        at: look at this time of the past, not at now.

    Raises:
        CommandError: nothing can listen there, or what was asked for is wrong in itself.
    """
    scope = Scope(matchers=fleet.matchers(selector))
    asked.known(Fleet(scope=scope, engines=()))
    watcher = Watcher(*(prometheus, selector, asked), clock=time.time if at is None else lambda: at)
    with listening(watcher, address) as server:
        print(f"the page: {listeners.url_of(server.socket)}/  (Ctrl-C ends it)", flush=True)
        if not is_loopback(address[0]):
            print("whoever reaches this address sees the page; it asks for no token", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def listening(watcher: Watcher, address: tuple[str, int]) -> ThreadingHTTPServer:
    """A server that listens at a host and port.

    Raises:
        CommandError: nothing can listen there.
    """

    class Handler(_Handler):
        pages = watcher
        is_for_everybody = not is_loopback(address[0])

    class Server(_Server):
        address_family = AF_INET6 if ":" in address[0] else AF_INET

    try:
        return Server(address, Handler)
    except OSError as error:
        raise CommandError(
            f"--serve: nothing can listen at {address[0]}:{address[1]}: {error.strerror}; "
            "choose another port",
            EXIT_USAGE,
        ) from error


class _Server(ThreadingHTTPServer):
    def server_bind(self) -> None:
        """Without asking the name service how this machine is called."""
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error."""
        import sys

        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    pages: Watcher
    is_for_everybody: bool
    timeout = _IDLE_S

    def do_GET(self) -> None:
        """A file of the page, or what it shows."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        name = urlsplit(self.path).path.removeprefix("/") or "index.html"
        if not self.is_for_everybody and not is_loopback(host):
            # Another site's name that leads here: its scripts shall not read what is shown.
            self._refuse(403, "this page answers to localhost and 127.0.0.1 alone")
        elif name == "fleet.json":
            self._say(200, "application/json", json.dumps(self.pages.answer()).encode())
        elif name in _FILES:
            file = _FILES[name]
            self._say(200, page_files.TYPES[file.suffix], file.read_bytes())
        else:
            self._refuse(404, "the page has no such file; open /")

    def _refuse(self, status: int, reason: str) -> None:
        self._say(status, "application/json", json.dumps({"error": reason}).encode())

    def _say(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), **page_files.HEADERS}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody wants a line for each look."""

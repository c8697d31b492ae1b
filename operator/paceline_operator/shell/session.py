"""One HTTP session with the API server: credentials, errors, patience."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import kopf
import pydantic_core

from paceline_operator.shell.errors import ApiRefused, ApiUnreachable, LoginFailed

_log = logging.getLogger(__name__)
Login = Callable[[], kopf.ConnectionInfo]
_PATIENT_CODES = frozenset({429})
_MAX_TRIES = 4
_MAX_WAIT_S = 10.0
REQUEST_TIMEOUT_S = 30.0


def login() -> kopf.ConnectionInfo:
    """Service account in a pod, else the person's kubeconfig with all its ways to log in.

    Raises:
        LoginFailed: there is neither.
    """
    try:
        found = kopf.login_via_client(logger=_log, settings=kopf.OperatorSettings())
    except kopf.LoginError as error:
        raise LoginFailed(
            f"{error} Set KUBECONFIG, or run in a pod with a service account"
        ) from error
    if found is None:
        raise LoginFailed("the package `kubernetes` is missing: pip install 'paceline[operator]'")
    return found


class Session:
    """Requests to one API server. Mutable: logs in again when the server forgets who we are."""

    def __init__(self, log_in: Login = login) -> None:
        self._log_in = log_in
        self._info: kopf.ConnectionInfo | None = None
        self._http: aiohttp.ClientSession | None = None
        self._retired: aiohttp.ClientSession | None = None
        self._renewal = asyncio.Lock()

    async def close(self) -> None:
        """End its connections."""
        for http in (self._http, self._retired):
            if http is not None:
                await http.close()
        self._http = self._retired = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """One request and its JSON answer.

        A server that is short of capacity (429) is asked again after the time that it names.

        Raises:
            ApiRefused: the server said no.
            ApiUnreachable: no answer; a write may have been done.
        """
        for number in range(_MAX_TRIES):
            is_last = number == _MAX_TRIES - 1
            http = await self._open()
            try:
                async with http.request(
                    method,
                    path,
                    params=params,
                    data=None if body is None else pydantic_core.to_json(body),
                    headers={"Content-Type": content_type},
                ) as answer:
                    text = await answer.read()
                    code, wait = answer.status, answer.headers.get("Retry-After", "1")
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise ApiUnreachable(f"{method} {path}: {error or type(error).__name__}") from error
            if code == 401 and not is_last:
                await self._renew(http)
                continue
            if code in _PATIENT_CODES and not is_last:
                await asyncio.sleep(min(float(wait), _MAX_WAIT_S) if wait.isdigit() else 1.0)
                continue
            return _read(code, text)
        raise AssertionError("unreachable")

    async def websocket(
        self, path: str, params: Mapping[str, str], protocol: str
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a stream, such as a port-forward.

        Raises:
            ApiUnreachable: it was not opened.
        """
        http = await self._open()
        try:
            return await http.ws_connect(path, params=params, protocols=(protocol,))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnreachable(f"{path}: {error or type(error).__name__}") from error

    async def _open(self) -> aiohttp.ClientSession:
        if self._http is None:
            async with self._renewal:
                if self._http is None:
                    self._http = await self._connect()
        return self._http

    async def _renew(self, refused: aiohttp.ClientSession) -> None:
        """Log in again, once for all requests that were refused at the same time."""
        async with self._renewal:
            if self._http is not refused:
                return
            fresh = await self._connect()
            if self._retired is not None:
                await self._retired.close()
            # Others may still wait for an answer at the old one: it goes at the next renewal.
            self._http, self._retired = fresh, refused

    async def _connect(self) -> aiohttp.ClientSession:
        info = await asyncio.to_thread(self._log_in)
        is_plain = info.server.startswith("http://")
        context: ssl.SSLContext | bool = False if is_plain else info.as_ssl_context()
        return aiohttp.ClientSession(
            base_url=info.server,
            connector=aiohttp.TCPConnector(ssl=context, limit=64),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=info.as_http_headers() | {"User-Agent": "paceline-operator"},
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=10.0),
            trust_env=info.trust_env,
        )


def _read(code: int, answer: bytes) -> dict[str, Any]:
    """What the server says: pydantic's reader takes half the time of the standard library's."""
    try:
        body = pydantic_core.from_json(answer)
    except ValueError:
        body = None
    if code < 400 and isinstance(body, dict):
        return body
    text = answer.decode(errors="replace")
    if code >= 400:
        raise ApiRefused.of_status(code, body if isinstance(body, Mapping) else text)
    raise ApiRefused(code, "", f"the API server answered with no JSON object: {text[:200]}")

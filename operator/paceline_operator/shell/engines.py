"""The admin ports of engines. That one does not answer is a reading, not an error."""

import asyncio
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import aiohttp

from paceline_crds import routes
from paceline_crds.phases import DrainPhase, StartupPhase
from paceline_operator.decide.observed import EngineReading
from paceline_operator.render.names import ADMIN_PORT, HTTP_PORT
from paceline_operator.resources import objects
from paceline_operator.shell import answers
from paceline_operator.shell.errors import EngineRefused, EngineUnreachable
from paceline_operator.shell.port_forward import PortForwards

Pod = Mapping[str, Any]
TIMEOUT_S = 5.0
READ_S = 10.0
"""A pod has so long for all answers of one reading together."""
MOST_BYTES = 1024 * 1024
MOST_BYTES_OF_REQUESTS = 8 * 1024 * 1024
_MOST_TEXT = 1024
_MOST_KEY = 63
_MOST = 2**53 - 1
"""Greatest number that status holds; the engine refuses revisions above it too."""
_UNAUTHORIZED = 401


class Access(Protocol):
    """How a pod's port is reached."""

    async def address(self, pod: Pod, port: int) -> str:
        """`host:port`."""


class PodNetwork:
    """An operator in the cluster's network talks to pods themselves."""

    async def address(self, pod: Pod, port: int) -> str:
        """The pod's own address."""
        ip = objects.text(pod, "status", "podIP")
        is_v6 = bool(ip) and ipaddress.ip_address(ip).version == 6
        return f"[{ip}]:{port}" if is_v6 else f"{ip}:{port}"


class Engines:
    """A client for the admin ports of all pods. Mutable: keeps connections."""

    def __init__(self, access: Access, clock: Callable[[], float]) -> None:
        self._access = access
        self._clock = clock
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """End its connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    def keep_only(self, pod_uids: set[str]) -> None:
        """Pods that are there; what is kept for others goes."""
        if isinstance(self._access, PortForwards):
            self._access.keep_only(pod_uids)

    async def read(
        self, pod: Pod, tokens: Sequence[str], *, with_requests: bool = False
    ) -> EngineReading:
        """What an engine says of itself.

        Args:
            pod: its pod.
            tokens: accepted ones, newest first; older pods may know the older one alone.
            with_requests: also ask how many requests it has.
        """
        settings: Mapping[str, Any] = {}
        requests: Mapping[str, Any] = {}
        try:
            async with asyncio.timeout(READ_S):
                status = await self._ask("GET", pod, routes.ADMIN_STATUS, tokens)
                if status.get("revision") is not None:
                    settings = await self._ask("GET", pod, routes.ADMIN_SETTINGS, tokens)
                if with_requests and settings:
                    requests = await self._ask("GET", pod, routes.ADMIN_REQUESTS, tokens)
        except (EngineUnreachable, EngineRefused) as error:
            return self._nothing(pod, str(error))
        except TimeoutError:
            return self._nothing(pod, f"{objects.name(pod)}: not read within {READ_S:g} s")
        return EngineReading(
            pod_uid=objects.uid(pod),
            read_at=self._clock(),
            is_reachable=True,
            is_ready=status.get("ready") is True,
            is_live=status.get("live") is True,
            reason=_text(status, "reason"),
            message=_text(status, "message"),
            model=_text(status, "model"),
            phase=_text(status, "phase"),
            progress=_number(status.get("progress")),
            drain_phase=_text(status, "drain", "phase") or DrainPhase.SERVING,
            revision=_whole(settings.get("revision")),
            generation=_whole(settings.get("generation")),
            settings=objects.mapping(settings, "settings"),
            num_requests=_length(requests.get("requests")),
            capacity=_wholes(status, "capacity"),
            memory_plan=_wholes(status, "memoryPlan"),
            kernels=objects.mapping(status, "kernels"),
        )

    async def read_vllm(self, pod: Pod) -> EngineReading:
        """What a stock vLLM says: its model, on the public port."""
        try:
            found = await self._ask("GET", pod, routes.MODELS, (), port=HTTP_PORT)
        except (EngineUnreachable, EngineRefused) as error:
            return self._nothing(pod, str(error))
        models = [_text(item, "id") for item in objects.items(found, "data")]
        return EngineReading(
            pod_uid=objects.uid(pod),
            read_at=self._clock(),
            is_reachable=True,
            is_ready=bool(models),
            is_live=True,
            model=models[0] if models else "",
            phase=StartupPhase.READY if models else StartupPhase.LOADING,
        )

    async def patch_settings(
        self, pod: Pod, tokens: Sequence[str], changes: Mapping[str, Any], revision: int
    ) -> None:
        """Change live settings.

        Raises:
            EngineRefused: 400, 409 or 412 with the engine's words.
            EngineUnreachable: no answer.
        """
        body = {**changes, "revision": revision}
        await self._ask("PATCH", pod, routes.ADMIN_SETTINGS, tokens, body=body)

    async def drain(self, pod: Pod, tokens: Sequence[str], propagation_s: float) -> None:
        """Begin a drain; a second one changes nothing.

        Raises:
            EngineRefused: it says no.
            EngineUnreachable: no answer.
        """
        body = {"propagation_s": propagation_s}
        await self._ask("POST", pod, routes.ADMIN_DRAIN, tokens, body=body)

    def _nothing(self, pod: Pod, message: str) -> EngineReading:
        return EngineReading(
            pod_uid=objects.uid(pod),
            read_at=self._clock(),
            is_reachable=False,
            message=message[:_MOST_TEXT],
        )

    async def _ask(
        self,
        method: str,
        pod: Pod,
        path: str,
        tokens: Sequence[str],
        *,
        body: Mapping[str, Any] | None = None,
        port: int = ADMIN_PORT,
    ) -> dict[str, Any]:
        if self._http is None:
            self._http = answers.session(aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=2.0))
        try:
            url = f"http://{await self._access.address(pod, port)}{path}"
            tried = tuple(tokens) or ("",)
            for token in tried:
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                async with self._http.request(
                    method, url, json=body, headers=headers, allow_redirects=False
                ) as answer:
                    if answer.status == _UNAUTHORIZED and token != tried[-1]:
                        continue
                    return await _object(answer)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise EngineUnreachable(
                f"{objects.name(pod)}: {error or type(error).__name__}"
            ) from error
        raise AssertionError("the last token is never skipped")


async def _object(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    is_long = answer.url.path == routes.ADMIN_REQUESTS
    body = await answers.json_of(answer, MOST_BYTES_OF_REQUESTS if is_long else MOST_BYTES)
    if not isinstance(body, dict):
        raise EngineRefused(answer.status, f"no JSON object from {answer.url.path}")
    if answer.status >= 400:
        told = objects.text(body, "error", "message") or str(body)[:200]
        raise EngineRefused(answer.status, told[:_MOST_TEXT])
    return body


def _text(value: Any, *path: str) -> str:
    return objects.text(value, *path)[:_MOST_TEXT]


def _is_amount(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= _MOST


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and _is_amount(value) else None


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _wholes(status: Mapping[str, Any], name: str) -> dict[str, int]:
    """Amounts that status can hold; an engine of another release may say others."""
    found = objects.mapping(status, name)
    return {
        key: int(value)
        for key, value in found.items()
        if 0 < len(key) <= _MOST_KEY and _is_amount(value)
    }


def _number(value: Any) -> float:
    return float(value) if _is_amount(value) else 0.0

"""The API server in memory over HTTP, with watches: for the operator as a whole process.

Everything that kopf asks for is answered (discovery, lists, watches from a version on), and of the
controllers that write into our children the one that writes most is played: each new Deployment
gets a revision and a status. LLMDeployments carry managedFields of the size of real ones.
"""

import asyncio
import copy
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from paceline_operator.resources import objects
from paceline_operator.shell import kinds
from paceline_operator.shell.errors import ApiRefused
from paceline_operator.shell.kinds import Kind
from paceline_operator.testing.api import NAMESPACE, FakeApi
from paceline_operator.testing.store import Object, Store

_ABSENT = frozenset(kinds.OPTIONAL)
_NAMESPACES = Kind("Namespace", "", "v1", "namespaces")
_SERVED = tuple(kind for kind in kinds.WATCHED if kind.name not in _ABSENT)
_BY_PLURAL = {kind.plural: kind for kind in (*_SERVED, kinds.EVENT, kinds.LEASE)}
_DISCOVERED = (*_BY_PLURAL.values(), _NAMESPACES)
_VERBS = ["get", "list", "watch", "create", "patch", "update", "delete"]
_CONTROLLER_S = 0.03
"""After so long each the Deployment controller writes once more."""


class Served:
    """One server on a port of this machine. Mutable; used from one event loop.

    Attributes:
        writes: method and resource -> how many requests changed something.
        num_events, event_bytes: what watches were told.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.store = Store()
        self.writes: Counter[str] = Counter()
        self.num_events = 0
        self.event_bytes = 0
        self._api = FakeApi(self.store, clock, absent=_ABSENT)
        self._told: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self._watches: dict[str, set[asyncio.Queue[bytes]]] = defaultdict(set)
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Listen; returns the address."""
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Listen no more."""
        for task in self._tasks:
            task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    async def create(self, name: str, spec: Mapping[str, Any]) -> None:
        """An LLMDeployment that a person creates."""
        kind = kinds.LLM_DEPLOYMENT
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "metadata": {"name": name, "namespace": NAMESPACE, "managedFields": [_fields(spec)]},
            "spec": dict(spec),
        }
        made = await self._api.request("POST", kind.path(NAMESPACE), body=body)
        self._tell(kind, "ADDED", made)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if (found := _discovery(parts)) is not None:
            return web.json_response(found)
        if request.query.get("watch") == "true":
            return await self._watch(request, _BY_PLURAL[parts[-1]])
        text = await request.read()
        try:
            answer = await self._api.request(
                request.method,
                request.path,
                params=dict(request.query),
                body=json.loads(text) if text else None,
                content_type=request.headers.get("Content-Type", "application/json"),
            )
        except ApiRefused as refused:
            told = {"kind": "Status", "reason": refused.reason, "message": refused.message}
            return web.json_response(told, status=refused.code)
        if request.method != "GET":
            answer = self._written(request, parts, answer)
        return web.json_response(answer)

    def _written(self, request: web.Request, parts: list[str], answer: Object) -> Object:
        kind = next(_BY_PLURAL[part] for part in parts if part in _BY_PLURAL)
        self.writes[f"{request.method} {kind.plural}"] += 1
        live = self.store.objects.get((kind.name, objects.name(answer)))
        if live is None:
            return answer
        if kind is kinds.LLM_DEPLOYMENT:
            live["metadata"]["managedFields"][1:] = [_fields(live["status"])]
            answer = copy.deepcopy(live)
        self._tell(kind, "MODIFIED", answer)
        if kind.name == "Deployment":
            task = asyncio.create_task(self._control(kind, live))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return answer

    async def _control(self, kind: Kind, live: Object) -> None:
        """As the Deployment controller does: a revision, then a status."""
        await asyncio.sleep(_CONTROLLER_S)
        annotations = live["metadata"].setdefault("annotations", {})
        annotations["deployment.kubernetes.io/revision"] = "1"
        self.store.touch(live)
        self._tell(kind, "MODIFIED", live)
        await asyncio.sleep(_CONTROLLER_S)
        live["status"] = {"observedGeneration": 1, "conditions": [{"type": "Available"}]}
        self.store.touch(live)
        self._tell(kind, "MODIFIED", live)

    def _tell(self, kind: Kind, change: str, item: Object) -> None:
        whole = {"apiVersion": kind.api_version, "kind": kind.name, **item}
        line = json.dumps({"type": change, "object": whole}).encode() + b"\n"
        version = int(item["metadata"]["resourceVersion"])
        self._told[kind.name].append((version, line))
        for queue in self._watches[kind.name]:
            queue.put_nowait(line)

    async def _watch(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        since = int(request.query.get("resourceVersion", "0"))
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        for version, line in self._told[kind.name]:
            if version > since:
                queue.put_nowait(line)
        self._watches[kind.name].add(queue)
        try:
            while True:
                line = await queue.get()
                self.num_events += 1
                self.event_bytes += len(line)
                await answer.write(line)
        finally:
            self._watches[kind.name].discard(queue)


def _discovery(parts: list[str]) -> dict[str, Any] | None:
    """What the server says of its kinds; None if another thing is asked for."""
    groups = sorted({(kind.group, kind.version) for kind in _DISCOVERED if kind.group})
    match parts:
        case ["api"]:
            return {"versions": ["v1"]}
        case ["apis"]:
            return {
                "groups": [
                    {
                        "name": group,
                        "versions": [{"version": version}],
                        "preferredVersion": {"version": version},
                    }
                    for group, version in groups
                ]
            }
        case ["api", version]:
            return _resources("", version)
        case ["apis", group, version]:
            return _resources(group, version) if (group, version) in groups else None
        case _:
            return None


def _resources(group: str, version: str) -> dict[str, Any]:
    return {
        "kind": "APIResourceList",
        "resources": [
            {
                "name": kind.plural,
                "singularName": kind.name.lower(),
                "kind": kind.name,
                "namespaced": kind is not _NAMESPACES,
                "verbs": _VERBS,
            }
            for kind in _DISCOVERED
            if (kind.group, kind.version) == (group, version)
        ],
    }


def _fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of managedFields for everything in a value, as long as a real one."""
    return {"manager": "python", "operation": "Update", "fieldsV1": _owned(value)}


def _owned(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {f"f:{name}": _owned(below) for name, below in value.items()}
    if isinstance(value, list):
        return {
            f"k:{json.dumps(_key(item))}": {".": {}, **_owned(item)}
            for item in value
            if isinstance(item, Mapping)
        }
    return {}


def _key(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in ("name", "type") if name in item}

"""An API server over HTTP that serves LLMDeployments, of which there are none: enough for watches.

Everything that is decided is tested over `api.FakeApi`; this is for the process around it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from paceline_operator.shell.kinds import LLM_DEPLOYMENT, WATCHED, Kind

_VERBS = ["list", "watch", "patch"]


@asynccontextmanager
async def serving(*, is_gone: bool = False) -> AsyncIterator[str]:
    """Serve during the block; gives its address.

    Args:
        is_gone: a list of LLMDeployments is answered as after their definition was deleted,
            although the server has just named the kind.
    """
    has_ended = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in _KNOWN:
            return web.json_response(_KNOWN[path])
        if path.endswith(f"/{LLM_DEPLOYMENT.plural}") and is_gone:
            return _not_found()
        if any(path.endswith(f"/{kind.plural}") for kind in WATCHED):
            if "watch" not in request.query:
                return web.json_response({"metadata": {"resourceVersion": "7"}, "items": []})
            stream = web.StreamResponse()
            await stream.prepare(request)
            await has_ended.wait()
            return stream
        return _not_found()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")
        has_ended.set()


def _not_found() -> web.Response:
    message = "the server could not find the requested resource"
    body = {"kind": "Status", "code": 404, "reason": "NotFound", "message": message}
    return web.json_response(body, status=404)


def _resource(plural: str, kind: str, *, is_namespaced: bool = True) -> dict[str, Any]:
    found = {"name": plural, "singularName": kind.lower(), "kind": kind, "verbs": _VERBS}
    return {**found, "namespaced": is_namespaced}


def _known() -> dict[str, Any]:
    versions: dict[str, list[Kind]] = {}
    for kind in WATCHED:
        versions.setdefault(kind.api_version, []).append(kind)
    found: dict[str, Any] = {
        f"/apis/{version}" if "/" in version else f"/api/{version}": {
            "resources": [_resource(kind.plural, kind.name) for kind in kinds]
        }
        for version, kinds in versions.items()
    }
    namespaces = _resource("namespaces", "Namespace", is_namespaced=False)
    found["/api/v1"]["resources"].append(namespaces)
    groups = [
        {"name": kind.group, "preferredVersion": version, "versions": [version]}
        for kind in WATCHED
        if kind.group
        for version in ({"version": kind.version},)
    ]
    return {**found, "/api": {"versions": ["v1"]}, "/apis": {"groups": groups}}


_KNOWN = _known()

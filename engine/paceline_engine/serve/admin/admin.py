"""The admin port: status, settings, drain, requests, steps. Its own port and its own token."""

import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from paceline_crds import routes
from paceline_crds.phases import StartupPhase
from paceline_engine.core.errors import SettingRefused
from paceline_engine.core.live_settings import check_revision, parse_changes
from paceline_engine.serve import health, metrics
from paceline_engine.serve.admin import faults, flight_recorder, page
from paceline_engine.serve.admin.admin_token import AdminTokens
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.error_types import error_type
from paceline_engine.serve.loopback import is_loopback
from paceline_engine.serve.step.engine_client import EngineClient, EngineGone, EngineInfo

log = logging.getLogger(__name__)

MAX_PROPAGATION_S = 3600.0
_ELSEWHERE = frozenset({"cross-site", "same-site"})
"""What browsers say of calls by a page of another origin: without a token it could drain."""
_AS_RECORDING = 'attachment; filename="recording.json"'


def create_admin_app(
    client: EngineClient,
    config: ServeConfig,
    drain: Drain,
    *,
    on_drain: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """The admin app.

    Args:
        client: the engine.
        config: names the token files.
        drain: begun by POST; whoever owns it advances it.
        on_drain: called after a drain was begun, so that its owner wakes up.
        clock: monotonic seconds.
    """
    app = FastAPI(title="Paceline admin", docs_url=None, redoc_url=None)
    tokens = AdminTokens(config)
    _answer_errors_as_objects(app)
    _ask_for_token(app, tokens)
    page.add_page(app, needs_token=tokens.is_configured)
    _add_status(app, client, config, drain, clock)
    _add_settings(app, client)
    _add_drain(app, config, drain, on_drain, clock)
    _add_insight(app, client, clock)
    _add_metrics(app, client, config, drain)
    _add_tuning(app, config)
    return app


def _ask_for_token(app: FastAPI, tokens: AdminTokens) -> None:
    @app.middleware("http")
    async def ask_for_token(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        if page.is_part(request.scope["path"]):  # the route's; url is made of Host too
            return await call_next(request)
        if request.headers.get("sec-fetch-site") in _ELSEWHERE:
            return _error(403, "another site's page asked for this; open this port's own page")
        if not tokens.is_configured and not is_loopback(request.url.hostname or ""):
            return _error(403, "without a token this port answers to localhost and 127.0.0.1 alone")
        if tokens.is_configured:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not token.strip():
                return _unauthorised(
                    "an admin token is needed; send it as `Authorization: Bearer TOKEN`"
                )
            try:
                is_accepted = tokens.accepts(token.strip())
            except (OSError, ValueError) as unreadable:
                return _error(503, f"the admin token cannot be checked: {unreadable}")
            if not is_accepted:
                return _unauthorised(
                    "the admin token is not accepted here; each server has its own, send this one's"
                )
        return await call_next(request)


def _add_status(
    app: FastAPI,
    client: EngineClient,
    config: ServeConfig,
    drain: Drain,
    clock: Callable[[], float],
) -> None:
    @app.get(routes.ADMIN_STATUS)
    async def status() -> dict[str, Any]:
        """Whether this engine is ready, what it serves and with which settings."""
        live = health.alive(client.startup, client.heartbeat, clock(), config.min_hang_s)
        ready = health.ready(live, client.startup, drain)
        body: dict[str, Any] = {
            "ready": ready.ok,
            "live": live.ok,
            "reason": ready.reason,
            "message": ready.message,
            "model": config.model_name,
            "phase": client.startup.phase,
            "progress": client.startup.progress,
            "drain": {"phase": drain.phase.value, "secondsLeft": drain.seconds_left(clock())},
            "secondsByPhase": dict(client.startup.seconds_by_phase),
        }
        info = client.info
        if info is not None and client.startup.phase == StartupPhase.READY:
            state = await client.settings()
            body |= {"revision": state.revision, "generation": state.generation}
            body |= _loaded(info)
        return body


def _loaded(info: EngineInfo) -> dict[str, Any]:
    """What is known once a model is loaded."""
    return {
        "modelRevision": info.revision,
        "capacity": {
            "kvBlocks": info.num_blocks - 1,
            "kvTokens": (info.num_blocks - 1) * info.block_size,
            "maxModelLen": info.max_model_len,
        },
        "memoryPlan": dict(info.memory_plan),
        "kernels": dict(info.kernels),
        "dtype": info.dtype,
        "kvCacheDtype": info.kv_cache_dtype,
        "kvDivergence": dict(info.kv_divergence),
    }


def _add_settings(app: FastAPI, client: EngineClient) -> None:
    @app.get(routes.ADMIN_SETTINGS)
    async def get_settings() -> dict[str, Any]:
        """The settings, and what is in force where one is derived from others."""
        state = await client.settings()
        return {
            "settings": state.settings.on_border(),
            "inForce": {"interTokenTargetMs": state.settings.step_target_ms},
            "generation": state.generation,
            "revision": state.revision,
        }

    @app.patch(routes.ADMIN_SETTINGS)
    async def patch_settings(body: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        """Change live settings, all or nothing: `{"maxNumSeqs": 8, "revision": 3}`."""
        changes = dict(body)
        revision = changes.pop("revision", None)
        # Here already: what is no setting's value may be nothing that a message can carry.
        parse_changes(changes)
        if revision is not None:
            check_revision(revision)
        change = await client.patch_settings(changes, revision)
        if change.new:
            turned = (f"{name} {change.old[name]} -> {new}" for name, new in change.new.items())
            log.info(
                "settings: %s (generation %d, revision %d)",
                ", ".join(turned),
                change.generation,
                change.revision,
            )
        return {
            "generation": change.generation,
            "revision": change.revision,
            "old": dict(change.old),
            "new": dict(change.new),
        }


def _add_drain(
    app: FastAPI,
    config: ServeConfig,
    drain: Drain,
    on_drain: Callable[[], None],
    clock: Callable[[], float],
) -> None:
    @app.post(routes.ADMIN_DRAIN)
    async def post_drain(body: Annotated[dict[str, Any] | None, Body()] = None) -> dict[str, Any]:
        """Begin a drain through both phases: `{"propagation_s": 5}`, or no body."""
        given = (body or {}).get("propagation_s", config.propagation_s)
        unknown = sorted(set(body or {}) - {"propagation_s"})
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if unknown or not is_number or not 0 <= given <= MAX_PROPAGATION_S:
            raise HTTPException(
                400,
                f"propagation_s must be a number in 0..{MAX_PROPAGATION_S:.0f} and the only "
                f"field, got {body!r}",
            )
        drain.post(clock(), float(given))
        on_drain()
        return {"phase": drain.phase.value}


def _add_insight(app: FastAPI, client: EngineClient, clock: Callable[[], float]) -> None:
    @app.get(routes.ADMIN_REQUESTS)
    async def requests() -> dict[str, Any]:
        """Every request in the engine, with the reason why it waits."""
        return {"requests": await client.requests()}

    @app.get(routes.ADMIN_STEPS, response_model=None)
    async def steps(
        limit: Annotated[int, Query(ge=1, le=flight_recorder.MAX_STEPS)] = 100,
        format: Annotated[str, Query(pattern="^(json|chrome)$")] = "json",  # noqa: A002 - the query's name
    ) -> dict[str, Any]:
        """The last steps, oldest first, and now on their clock; or a trace for chrome://tracing."""
        found = await client.steps(limit)
        if format == "chrome":
            return flight_recorder.chrome_trace(found)
        return {"steps": found, "nowS": clock()}

    @app.get(routes.ADMIN_RECORDING)
    async def recording() -> Response:
        """A download for `paceline sim --replay`: ended requests and steps, no token of any."""
        state, info, found = await client.settings(), client.info, await client.recording()
        assert info is not None, "an engine that answers has told what it is"
        body = flight_recorder.recording(found, info, state)
        return JSONResponse(body, headers={"Content-Disposition": _AS_RECORDING})

    @app.post(routes.ADMIN_RESET_PREFIX_CACHE)
    async def reset_prefix_cache() -> dict[str, Any]:
        """Forget the cached blocks that no request uses."""
        return {"blocks": await client.reset_prefix_cache()}


def _add_metrics(app: FastAPI, client: EngineClient, config: ServeConfig, drain: Drain) -> None:
    @app.get(routes.METRICS)
    async def prometheus_page() -> Response:
        """The public port's page: a browser may not read it from there."""
        facts = metrics.ServingFacts(
            model_name=config.model_name,
            is_draining=not drain.is_ready,
            startup_seconds=client.startup.seconds_by_phase,
            unix_s=time.time(),
        )
        body = metrics.render(client.stats, facts)
        return Response(body, headers={"content-type": metrics.CONTENT_TYPE})


def _add_tuning(app: FastAPI, config: ServeConfig) -> None:
    @app.get(routes.ADMIN_TUNING)
    def tuning() -> dict[str, Any]:
        """What the tuner of `paceline run` writes down, as `status.tuning` has it; else null."""
        try:
            text = config.tuning_file.read_text(encoding="utf-8") if config.tuning_file else "null"
            return {"tuning": json.loads(text)}
        except FileNotFoundError:
            return {"tuning": {}}  # it has said nothing so far
        except (OSError, ValueError) as error:
            raise HTTPException(503, f"the tuner's file cannot be read: {error}") from error


def _answer_errors_as_objects(app: FastAPI) -> None:
    @app.exception_handler(SettingRefused)
    async def refused(_: Request, error: SettingRefused) -> JSONResponse:
        log.warning("settings refused: %s", error)
        return _error(error.status, str(error), error.field or None)

    @app.exception_handler(EngineGone)
    async def gone(_: Request, error: EngineGone) -> JSONResponse:
        return _error(503, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return _error(400, faults.sentence(first, request.url.path), faults.place(first))

    @app.exception_handler(Exception)
    async def unforeseen(_: Request, error: Exception) -> JSONResponse:  # noqa: ARG001 - logged by the server
        return _error(500, "internal error; the server's log has the details")

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400 and error.__cause__ is not None:
            # FastAPI could not read the body at all, and says no more than that.
            return _error(400, faults.unread(error.__cause__, request.url.path), "body")
        return _error(error.status_code, str(error.detail))


def _unauthorised(message: str) -> JSONResponse:
    answer = _error(401, message)
    answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def _error(status: int, message: str, param: str | None = None) -> JSONResponse:
    kind = error_type(status)
    body = {
        "message": message,
        "type": kind,
        "param": param,
        "code": kind.removesuffix("_error"),
    }
    return JSONResponse({"error": body}, status)

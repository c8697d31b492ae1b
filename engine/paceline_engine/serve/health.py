"""The health endpoints: progress of steps, not of the HTTP thread, decides who is alive."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from paceline_crds import routes
from paceline_crds.phases import StartupPhase
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.step.engine_client import EngineClient, Heartbeat, Startup

HANG_FACTOR = 20.0
"""A step is called hung when it takes so many times longer than predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An answer of a probe and why."""

    ok: bool
    reason: str
    message: str = ""


def hang_threshold_s(heartbeat: Heartbeat, min_hang_s: float) -> float:
    """How long the step in flight may take before it is called hung."""
    return max(min_hang_s, HANG_FACTOR * heartbeat.predicted_step_s)


def alive(startup: Startup, heartbeat: Heartbeat, now: float, min_hang_s: float) -> Verdict:
    """Whether the engine makes progress. Loading is a phase and idleness is no hang."""
    if startup.phase == StartupPhase.FAILED:
        return Verdict(
            ok=False, reason=startup.reason or StartupPhase.FAILED, message=startup.message
        )
    if startup.phase != StartupPhase.READY:
        return Verdict(ok=True, reason=startup.phase)
    if not heartbeat.has_work:
        return Verdict(ok=True, reason="Idle")
    silent_s = now - heartbeat.last_progress_s
    allowed_s = hang_threshold_s(heartbeat, min_hang_s)
    if silent_s > allowed_s:
        return Verdict(
            ok=False,
            reason="Hung",
            message=f"no step finished for {silent_s:.1f} s while requests wait; "
            f"at most {allowed_s:.1f} s were expected",
        )
    return Verdict(ok=True, reason="Stepping")


def ready(live: Verdict, startup: Startup, drain: Drain) -> Verdict:
    """Whether endpoints may route here."""
    if not live.ok:
        return live
    if startup.phase != StartupPhase.READY:
        return Verdict(ok=False, reason=startup.phase, message="the model is not loaded yet")
    if not drain.is_ready:
        return Verdict(ok=False, reason=drain.phase.value, message=f"drain by {drain.reason}")
    return Verdict(ok=True, reason=StartupPhase.READY)


def router(
    client: EngineClient,
    drain: Drain,
    *,
    min_hang_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> APIRouter:
    """`/health`, `/health/live`, `/health/ready`, `/health/startup`. None of them needs a key."""
    health_routes = APIRouter(tags=["health"])

    def live_now() -> Verdict:
        return alive(client.startup, client.heartbeat, clock(), min_hang_s)

    @health_routes.get(routes.HEALTH_LIVE)
    async def health_live() -> JSONResponse:
        """200 while steps make progress, while the model loads and while nothing is to do."""
        return _answer(live_now())

    @health_routes.get(routes.HEALTH_READY)
    async def health_ready() -> JSONResponse:
        """200 once the model is loaded, until a drain begins."""
        return _answer(ready(live_now(), client.startup, drain))

    @health_routes.get(routes.HEALTH)
    async def health() -> JSONResponse:
        """200 when loaded and alive; it stays 200 while draining."""
        live = live_now()
        if live.ok and client.startup.phase != StartupPhase.READY:
            live = Verdict(ok=False, reason=client.startup.phase)
        return _answer(live)

    @health_routes.get(routes.HEALTH_STARTUP)
    async def health_startup() -> JSONResponse:
        """200 once the model is loaded; the body says phase and progress before that."""
        startup = client.startup
        body: dict[str, object] = {
            "phase": startup.phase,
            "progress": round(startup.progress, 3),
            "secondsByPhase": {k: round(v, 3) for k, v in startup.seconds_by_phase.items()},
        }
        if startup.reason:
            body |= {"reason": startup.reason, "message": startup.message}
        return JSONResponse(body, 200 if startup.phase == StartupPhase.READY else 503)

    return health_routes


def _answer(verdict: Verdict) -> JSONResponse:
    body = {"status": "ok" if verdict.ok else "unavailable", "reason": verdict.reason}
    if verdict.message:
        body["message"] = verdict.message
    return JSONResponse(body, 200 if verdict.ok else 503)

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from paceline_engine.serve import health
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.health import alive, hang_threshold_s, ready
from paceline_engine.serve.step.engine_client import Heartbeat, Startup

READY = Startup(phase="Ready", progress=1.0)


def beat(age_s: float, *, has_work: bool = True, predicted_s: float = 0.0) -> Heartbeat:
    return Heartbeat(
        last_progress_s=1000.0 - age_s, has_work=has_work, predicted_step_s=predicted_s
    )


def test_an_idle_engine_is_not_hung() -> None:
    assert alive(READY, beat(50_000.0, has_work=False), 1000.0, 30.0).ok


def test_a_loading_engine_is_alive_however_long_it_takes() -> None:
    for phase in ("Spawning", "Fetching", "Loading", "Measuring"):
        assert alive(Startup(phase=phase), beat(9_999.0), 1000.0, 30.0).ok


def test_work_without_a_finished_step_is_a_hang() -> None:
    assert alive(READY, beat(29.0), 1000.0, 30.0).ok
    verdict = alive(READY, beat(31.0), 1000.0, 30.0)
    assert (verdict.ok, verdict.reason) == (False, "Hung")


def test_the_threshold_scales_with_the_predicted_step() -> None:
    slow = beat(31.0, predicted_s=10.0)
    assert hang_threshold_s(slow, 30.0) == 10.0 * health.HANG_FACTOR
    assert alive(READY, slow, 1000.0, 30.0).ok


def test_a_failed_engine_is_neither_alive_nor_ready() -> None:
    failed = Startup(phase="Failed", reason="DeviceBroken", message="steps failed")
    live = alive(failed, beat(0.0), 1000.0, 30.0)
    assert (live.ok, live.reason) == (False, "DeviceBroken")
    assert not ready(live, failed, Drain(shutdown_timeout_s=1.0)).ok


class FakeClient:
    """The part of an engine client that health looks at."""

    info = None

    def __init__(self, startup: Startup, heartbeat: Heartbeat) -> None:
        self.startup = startup
        self.heartbeat = heartbeat


LOADING = Startup(phase="Loading", progress=0.25, seconds_by_phase={"Importing": 2.5})
FAILED = Startup(phase="Failed", reason="OutOfMemory", message="8 GiB wanted, 4 GiB free")
IDLE = beat(500.0, has_work=False)


@pytest.mark.parametrize(
    ("startup", "heartbeat", "is_draining", "live", "ready_", "whole", "start"),
    [
        (LOADING, IDLE, False, 200, 503, 503, 503),
        (READY, IDLE, False, 200, 200, 200, 200),
        (READY, beat(0.0), True, 200, 503, 200, 200),
        (READY, beat(31.0), False, 503, 503, 503, 200),
        (FAILED, IDLE, False, 503, 503, 503, 503),
    ],
    ids=["loading", "serving", "draining", "hung", "failed"],
)
def test_each_state_has_its_four_answers(
    startup: Startup,
    heartbeat: Heartbeat,
    is_draining: bool,
    live: int,
    ready_: int,
    whole: int,
    start: int,
) -> None:
    drain = Drain(shutdown_timeout_s=1.0)
    if is_draining:
        drain.terminate(0.0)
    app = FastAPI()
    client: Any = FakeClient(startup, heartbeat)
    app.include_router(health.router(client, drain, min_hang_s=30.0, clock=lambda: 1000.0))

    async def statuses() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            paths = ("/health/live", "/health/ready", "/health", "/health/startup")
            return [(await http.get(path)).status_code for path in paths]

    assert asyncio.run(statuses()) == [live, ready_, whole, start]


def test_startup_says_phase_progress_and_why_it_failed() -> None:
    async def body_of(startup: Startup) -> dict[str, object]:
        app = FastAPI()
        client: Any = FakeClient(startup, IDLE)
        app.include_router(health.router(client, Drain(shutdown_timeout_s=1.0), min_hang_s=30.0))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            body: dict[str, object] = (await http.get("/health/startup")).json()
            return body

    assert asyncio.run(body_of(LOADING)) == {
        "phase": "Loading",
        "progress": 0.25,
        "secondsByPhase": {"Importing": 2.5},
    }
    assert asyncio.run(body_of(FAILED))["reason"] == "OutOfMemory"

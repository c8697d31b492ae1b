"""What engines and Prometheus may answer at worst: a reading or a reason, at a bounded price."""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from aiohttp import web

from paceline_crds.status import LLMDeploymentStatus
from paceline_operator.decide import status as statuses
from paceline_operator.decide.observed import EngineReading, Measured
from paceline_operator.decide.tuning.asking import Question
from paceline_operator.decide.tuning.signals import Signal, Window
from paceline_operator.shell import engines as engine_ports
from paceline_operator.shell.engines import Engines
from paceline_operator.shell.errors import EngineUnreachable
from paceline_operator.shell.prometheus import AWAY_S, Prometheus
from paceline_operator.testing.loopback import Answer, Loopback, answering

POD = {"metadata": {"name": "demo-1", "uid": "u1"}, "status": {"podIP": "10.0.0.9"}}
STATUS: dict[str, Any] = {"ready": True, "live": True, "model": "demo", "revision": 3}
SETTINGS: dict[str, Any] = {"settings": {"maxNumSeqs": 4}, "revision": 3, "generation": 1}
NESTED = b"[" * 100_000 + b"]" * 100_000


def serve(answer: Answer, script: Callable[[int], Awaitable[Any]]) -> Any:
    """Run a script against a server of this process; it gets the port."""

    async def run() -> Any:
        async with answering(answer) as port:
            return await script(port)

    return asyncio.run(asyncio.wait_for(run(), 20))


def read(answers: Mapping[str, Any], *, with_requests: bool = False) -> EngineReading:
    """What is read of an engine; answers by the last word of the path, bytes or JSON."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = answers[request.path.rpartition("/")[2]]
        if isinstance(body, web.StreamResponse):
            return body
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(body=raw, content_type="application/json")

    async def script(port: int) -> EngineReading:
        engines = Engines(Loopback(port), lambda: 5.0)
        try:
            return await engines.read(POD, ("token",), with_requests=with_requests)
        finally:
            await engines.close()

    found: EngineReading = serve(answer, script)
    return found


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"7",
        NESTED,
        b'{"ready": NaN}',
        b'{"message": "\\ud800"}',
        b'{"message": "\xed\xa0\x80"}',
        '{"message": "\\ud800"}'.encode("utf-16"),
        b'{"revision": ' + b"9" * 5000 + b"}",
        b'{"message": "' + b"x" * 2 * engine_ports.MOST_BYTES + b'"}',
        gzip.compress(b'{"ready": true}'),
    ],
    ids=[
        "empty",
        "bytes",
        "list",
        "number",
        "deep",
        "nan",
        "half",
        "raw half",
        "utf-16",
        "digits",
        "huge",
        "gzip",
    ],
)
def test_garbage_at_an_admin_port_is_a_reading(body: bytes) -> None:
    found = read({"status": body})
    assert (found.is_reachable, bool(found.message)) == (False, True)
    assert len(found.message) < 2000


def test_a_packed_answer_is_not_unpacked() -> None:
    bomb = web.Response(body=gzip.compress(b" " * 50_000_000), headers={"Content-Encoding": "gzip"})
    assert not read({"status": bomb}).is_reachable


def test_an_engine_leads_the_operator_nowhere_else() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        if request.path == "/secret":
            return web.json_response(STATUS)
        return web.Response(status=307, headers={"Location": "/secret"})

    async def script(port: int) -> None:
        engines = Engines(Loopback(port), lambda: 5.0)
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        assert not (await engines.read(POD, ("token",))).is_reachable
        with pytest.raises(EngineUnreachable, match="redirects are not followed"):
            await engines.patch_settings(POD, ("token",), {}, 4)
        found = await prometheus.measure([question()])
        assert "redirects are not followed" in found.text
        await engines.close()
        await prometheus.close()

    serve(answer, script)
    assert "/secret" not in asked


@pytest.mark.parametrize("requests", [5, "x", None, {"a": 1}])
def test_requests_that_are_no_list_are_not_counted(requests: Any) -> None:
    answers = {"status": STATUS, "settings": SETTINGS, "requests": {"requests": requests}}
    found = read(answers, with_requests=True)
    assert (found.is_reachable, found.num_requests) == (True, None)


def test_what_an_engine_says_fits_into_status() -> None:
    odd = {"kvTokens": -5, "kvBlocks": 10**30, "maxModelLen": True}
    plan = {"x" * 64: 1, "": 1, "weights": 7, "kv": 1e300, "other": 2.5, "text": "x"}
    said = {**STATUS, "capacity": odd, "memoryPlan": plan, "message": "m" * 9000, "progress": 1e999}
    found = read({"status": {**said, "progress": 5}, "settings": {**SETTINGS, "revision": 2**53}})
    assert (found.capacity, found.memory_plan) == ({}, {"weights": 7, "other": 2})
    assert (found.revision, len(found.message)) == (None, 1024)
    full = read(
        {"status": {**said, "capacity": {"kvTokens": 16}, "progress": 5}, "settings": SETTINGS}
    )
    made = statuses.measured([_view(full)])
    LLMDeploymentStatus.model_validate(made)


def _view(reading: EngineReading) -> Any:
    class View:
        def __init__(self) -> None:
            self.reading = reading

    return View()


def test_a_pod_that_answers_slowly_each_time_is_given_up_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_ports, "READ_S", 0.05)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("settings"):
            await asyncio.sleep(5)
        return web.json_response(STATUS)

    async def script(port: int) -> EngineReading:
        engines = Engines(Loopback(port), lambda: 5.0)
        try:
            return await engines.read(POD, ("token",))
        finally:
            await engines.close()

    found = serve(answer, script)
    assert (found.is_reachable, found.message) == (False, "demo-1: not read within 0.05 s")


def question() -> Question:
    return Question(window=Window(start=970, end=1000), pods=("a",), query="up")


def measured(body: bytes) -> Measured:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    async def script(port: int) -> Measured:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        try:
            return await prometheus.measure([question()])
        finally:
            await prometheus.close()

    found: Measured = serve(answer, script)
    return found


def vector(value: Any) -> bytes:
    series = [{"metric": {"signal": "running"}, "value": value}]
    return json.dumps({"status": "success", "data": {"result": series}}).encode()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (vector([1, "x"]), "QueryFailed"),
        (vector([1, None]), "QueryFailed"),
        (NESTED, "PrometheusUnreachable"),
        (b'{"status": "success", "x": "' + b"x" * 2_000_000 + b'"}', "PrometheusUnreachable"),
        (b'["success"]', "QueryFailed"),
    ],
    ids=["word", "null", "deep", "huge", "list"],
)
def test_garbage_of_prometheus_is_a_lack_of_measurements(body: bytes, reason: str) -> None:
    found = measured(body)
    assert (found.lack, bool(found.text)) == (reason, True)
    assert len(found.text) < 1000


@pytest.mark.parametrize("value", ["1e300", "-1e300", "NaN", "+Inf"])
def test_a_number_that_status_cannot_hold_is_no_signal(value: str) -> None:
    (sample,) = measured(vector([1, value])).samples
    assert sample.get(Signal.RUNNING) is None


def test_a_prometheus_that_is_away_is_not_waited_for_by_every_look() -> None:
    asked: list[float] = []
    now = 100.0

    async def answer(_: web.Request) -> web.StreamResponse:
        asked.append(now)
        if len(asked) == 1:
            return web.Response(body=b"the gateway is tired", status=504)
        return web.Response(body=vector([1, "2"]))

    async def script(port: int) -> None:
        nonlocal now
        prometheus = Prometheus(f"http://127.0.0.1:{port}", clock=lambda: now)
        first = await prometheus.measure([question()])
        second = await prometheus.measure([question()])
        assert (second.lack, second.text) == (first.lack, first.text)
        now += AWAY_S
        assert (await prometheus.measure([question()])).lack == ""
        await prometheus.close()

    serve(answer, script)
    assert len(asked) == 2

"""The real client and the real step process, with a runner that needs no torch."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paceline_crds import metrics
from paceline_crds.settings import EngineSettings
from paceline_engine.core.request import FinishReason
from paceline_engine.serve import health
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.step.engine_client import EngineGone
from paceline_engine.serve.step.socket_client import SocketEngineClient
from paceline_engine.testing import fake_engine
from paceline_engine.testing.fake_runner import solo_tokens
from paceline_engine.testing.streams import collect, make_request

pytestmark = pytest.mark.slow

Go = Callable[[SocketEngineClient], Awaitable[None]]


def config_of(model_dir: Path, **settings: object) -> ServeConfig:
    return ServeConfig(
        model="fake",
        model_dir=model_dir,
        settings=EngineSettings.model_validate(settings),
        runner_factory=fake_engine.FACTORY,
        settings_revision=7,
    )


def play(model_dir: Path, go: Go, *, is_ready: bool = True, **settings: object) -> None:
    async def run() -> None:
        client = SocketEngineClient(config_of(model_dir, **settings))
        await client.start()
        try:
            if is_ready:
                await until(lambda: client.startup.phase in {"Ready", "Failed"})
            await asyncio.wait_for(go(client), 120)
        finally:
            await client.close()
        assert client.exit_code is not None

    asyncio.run(run())


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.002)


@pytest.mark.parametrize(
    ("memory", "set_here", "tokens", "seqs"),
    [
        (None, {}, 2048, 128),
        (24 * 10**9, {}, 2048, 256),
        (80 * 10**9, {}, 8192, 1024),
        (80 * 10**9, {"max_num_seqs": 7}, 8192, 7),
        (80 * 10**9, {"boot_max_num_seqs": 300}, 8192, 300),
    ],
)
def test_what_nobody_set_is_decided_by_the_device(
    tmp_path: Path, memory: int | None, set_here: dict[str, int], tokens: int, seqs: int
) -> None:
    if memory is not None:
        (tmp_path / "gpu_memory_bytes").write_text(str(memory))

    async def go(client: SocketEngineClient) -> None:
        settings = (await client.settings()).settings
        assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (tokens, seqs)

    play(tmp_path, go, **set_here)


def test_streams_settings_and_gauges_over_the_socket(tmp_path: Path) -> None:
    async def go(client: SocketEngineClient) -> None:
        assert client.info is not None
        assert client.info.kernels == {"attention": "fake"}
        assert set(client.startup.seconds_by_phase) >= {"Importing", "Loading"}
        runner = fake_engine.FakeEngine(tmp_path, EngineSettings().booted())
        requests = [make_request(i, tuple(range(i, i + 60)), max_tokens=40) for i in range(24)]
        streams = await asyncio.gather(*map(client.submit, requests))
        results = asyncio.gather(*map(collect, streams))
        change = await client.patch_settings({"maxNumSeqs": 3}, 9)
        assert (change.old, change.new) == ({"maxNumSeqs": 8}, {"maxNumSeqs": 3})
        state = await client.settings()
        assert (state.settings.max_num_seqs, state.generation, state.revision) == (3, 1, 9)
        for request, result in zip(requests, await results, strict=True):
            tokens, finished = result
            assert (tokens, finished.reason) == solo_tokens(request, runner.limits)
        await until(lambda: not client.heartbeat.has_work)
        await until(lambda: client.stats.value(metrics.RUNNING) == 0)
        assert client.stats.value(metrics.KV_USAGE) == 0.0
        assert client.stats.value(metrics.SETTINGS_REVISION) == 9.0
        assert client.stats.value(metrics.SUCCESS, finished_reason="length") == 24.0

    play(tmp_path, go, maxNumSeqs=8, maxNumBatchedTokens=64)


def test_the_settings_file_is_in_force_from_the_start(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"revision": 12, "settings": {"maxNumSeqs": 5}}')

    async def run() -> None:
        client = SocketEngineClient(replace(config_of(tmp_path), settings_file=file))
        await client.start()
        try:
            await until(lambda: client.startup.phase in {"Ready", "Failed"})
            state = await client.settings()
        finally:
            await client.close()
        assert (state.settings.max_num_seqs, state.revision, state.generation) == (5, 12, 0)

    asyncio.run(run())


@pytest.mark.parametrize(("wanted", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_step_process_waits_passively_unless_the_person_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str | None, expected: str
) -> None:
    if wanted is None:
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    else:
        monkeypatch.setenv("OMP_WAIT_POLICY", wanted)

    async def go(client: SocketEngineClient) -> None:
        environment = environment_of(client.pid)
        assert f"OMP_WAIT_POLICY={expected}" in environment
        assert f"PATH={os.environ['PATH']}" in environment

    play(tmp_path, go)


def environment_of(pid: int | None) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


def test_clients_that_vanish_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "step_ms").write_text("1")

    async def go(client: SocketEngineClient) -> None:
        submits = [
            asyncio.create_task(client.submit(make_request(i, max_tokens=2000))) for i in range(200)
        ]
        await until(lambda: any(task.done() for task in submits))
        for task in submits[::3]:
            task.cancel()
        for stream in await asyncio.gather(*submits, return_exceptions=True):
            if not isinstance(stream, BaseException):
                client.abort(stream.request_id)
        await until(lambda: client.num_open_streams == 0)
        assert await client.requests() == []
        await until(lambda: not client.heartbeat.has_work)
        await until(lambda: client.stats.value(metrics.WAITING) == 0)
        assert client.stats.value(metrics.RUNNING) == 0.0
        assert client.stats.value(metrics.KV_USAGE) == 0.0

    play(tmp_path, go, maxNumSeqs=16, numKvBlocks=4000)


def test_a_reader_that_sleeps_costs_nobody_and_gets_all_its_tokens(tmp_path: Path) -> None:
    async def go(client: SocketEngineClient) -> None:
        streams = [await client.submit(make_request(i, max_tokens=300)) for i in range(40)]
        sleeper, *others = streams
        for tokens, _ in await asyncio.gather(*map(collect, others)):
            assert len(tokens) == 300
        await until(lambda: client.num_open_streams == 0)
        deltas = [delta async for delta in sleeper]
        assert sum(len(delta.token_ids) for delta in deltas) == 300
        assert len(deltas) == 1, "what came meanwhile is one delta"

    play(tmp_path, go, maxNumSeqs=40, numKvBlocks=2000)


def test_the_heartbeat_expects_steps_to_take_what_they_took(tmp_path: Path) -> None:
    (tmp_path / "step_ms").write_text("30")

    async def go(client: SocketEngineClient) -> None:
        await collect(await client.submit(make_request(1, max_tokens=20)))
        await until(lambda: not client.heartbeat.has_work)
        assert client.heartbeat.predicted_step_s == 0.0
        stream = await client.submit(make_request(2, max_tokens=100))
        await until(lambda: len(stream._tokens) > 10)
        assert 0.02 < client.heartbeat.predicted_step_s < 1.0
        assert health.hang_threshold_s(client.heartbeat, 0.1) > 0.4

    play(tmp_path, go)


def test_a_killed_engine_is_gone_for_everybody(tmp_path: Path) -> None:
    (tmp_path / "step_ms").write_text("5")

    async def go(client: SocketEngineClient) -> None:
        stream = await client.submit(make_request(1, max_tokens=5000))
        await anext(aiter(stream))
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineGone, match="SIGKILL"):
            await collect(stream)
        await client.wait_ended()
        assert client.exit_code == -signal.SIGKILL
        for call in (client.submit(make_request(2)), client.settings()):
            with pytest.raises(EngineGone):
                await call
        live = health.alive(client.startup, client.heartbeat, time.monotonic(), 30.0)
        assert (live.ok, live.reason) == (False, "EngineDied")

    play(tmp_path, go, numKvBlocks=4000)


def test_a_step_that_hangs_is_seen_from_outside(tmp_path: Path) -> None:
    async def go(client: SocketEngineClient) -> None:
        def is_alive() -> bool:
            return health.alive(client.startup, client.heartbeat, time.monotonic(), 0.2).ok

        await collect(await client.submit(make_request(1, max_tokens=20)))
        assert is_alive()
        (tmp_path / "hang").touch()
        waiting = asyncio.create_task(client.submit(make_request(2)))
        await until(lambda: not is_alive())
        (tmp_path / "hang").unlink()
        await collect(await waiting)
        await until(is_alive)

    play(tmp_path, go)


def test_a_stopped_idle_process_is_seen_too(tmp_path: Path) -> None:
    async def go(client: SocketEngineClient) -> None:
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        waiting = asyncio.create_task(client.submit(make_request(1)))
        await until(
            lambda: not health.alive(client.startup, client.heartbeat, time.monotonic(), 0.1).ok
        )
        os.kill(client.pid, signal.SIGCONT)
        await collect(await waiting)

    play(tmp_path, go)


def test_a_device_that_keeps_failing_ends_the_process(tmp_path: Path) -> None:
    async def go(client: SocketEngineClient) -> None:
        (tmp_path / "fail").touch()
        for request_id in (1, 2):
            _, finished = await collect(await client.submit(make_request(request_id)))
            assert finished.reason is FinishReason.ERROR
        await client.wait_ended()
        with pytest.raises(EngineGone):
            await client.submit(make_request(3))
        assert client.startup.reason == "DeviceBroken"
        assert client.exit_code == 4

    play(tmp_path, go)


@pytest.mark.parametrize("reason", ["OutOfMemory", "UnsupportedModel"])
def test_a_failed_start_keeps_its_reason(tmp_path: Path, reason: str) -> None:
    (tmp_path / "start_failed").write_text(reason)

    async def go(client: SocketEngineClient) -> None:
        await client.wait_ended()
        assert (client.startup.phase, client.startup.reason) == ("Failed", reason)
        assert client.startup.message == "the test wants it so"
        assert client.exit_code == 3

    play(tmp_path, go)


def test_a_client_that_closes_while_the_model_loads_waits_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow_load").touch()

    async def go(client: SocketEngineClient) -> None:
        await until(lambda: client.startup.phase == "Loading")
        with pytest.raises(EngineGone, match="Loading"):
            await client.submit(make_request(1))
        began = time.monotonic()
        await client.close()
        assert time.monotonic() - began < 2.0

    play(tmp_path, go, is_ready=False)


def test_signals_to_the_whole_group_leave_the_engine_to_its_client(tmp_path: Path) -> None:
    async def go(client: SocketEngineClient) -> None:
        assert client.pid is not None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(client.pid, number)
        _, finished = await collect(await client.submit(make_request(1)))
        assert finished.reason is FinishReason.LENGTH

    play(tmp_path, go)


def test_a_process_for_a_runner_without_torch_has_none_of_it(tmp_path: Path) -> None:
    async def go(client: SocketEngineClient) -> None:
        assert "libtorch" not in memory_map(client.pid)

    play(tmp_path, go)


def memory_map(pid: int | None) -> str:
    return Path(f"/proc/{pid}/maps").read_text()

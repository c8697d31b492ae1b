"""The step loop with the real scheduler and the fake runner, driven through its client."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest

from paceline_crds import metrics
from paceline_crds.settings import EngineSettings
from paceline_engine.core.errors import SettingRefused
from paceline_engine.core.request import FinishReason
from paceline_engine.serve.step.engine_client import EngineGone, RequestRefused
from paceline_engine.serve.step.in_process import InProcessEngineClient
from paceline_engine.serve.step.loop import MAX_FAILURES, MAX_RETRIES
from paceline_engine.testing.fake_engine import FakeEngine
from paceline_engine.testing.fake_runner import solo_tokens
from paceline_engine.testing.streams import collect, make_request

Go = Callable[[InProcessEngineClient, FakeEngine], Awaitable[None]]


class Play(Protocol):
    """Runs `go` against a client with these settings."""

    def __call__(self, go: Go, **settings: object) -> None: ...


@pytest.fixture(params=[False, True], ids=["one by one", "overlap"])
def play(tmp_path: Path, request: pytest.FixtureRequest) -> Play:
    """A client whose steps follow each other, or are planned while the one before runs."""

    def run(go: Go, **settings: object) -> None:
        asyncio.run(run_async(go, {"overlap": request.param} | settings))

    async def run_async(go: Go, settings: dict[str, object]) -> None:
        runner = FakeEngine(tmp_path, EngineSettings.model_validate(settings).booted())
        client = InProcessEngineClient(runner)
        try:
            await asyncio.wait_for(go(client, runner), 120)
        finally:
            await client.close()

    return run


async def until_idle(client: InProcessEngineClient) -> None:
    # The loop under test shares this event loop: a turn of the one is a turn of the other.
    is_busy = True
    while is_busy:
        await asyncio.sleep(0)
        is_busy = client.heartbeat.has_work or client.stats.value(metrics.RUNNING) > 0


def test_outputs_are_those_of_a_request_alone(play: Play) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        requests = [
            make_request(i, tuple(range(i, 40 + i)), max_tokens=1 + i % 7) for i in range(30)
        ]
        streams = await asyncio.gather(*map(client.submit, requests))
        results = await asyncio.gather(*map(collect, streams))
        for request, (tokens, finished) in zip(requests, results, strict=True):
            assert (tokens, finished.reason) == solo_tokens(request, runner.limits)
            assert finished.num_output_tokens == len(tokens)

    play(go, maxNumBatchedTokens=64, maxNumSeqs=8)


def test_gauges_are_zero_after_every_client_has_gone(play: Play) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        streams = [await client.submit(make_request(i, max_tokens=500)) for i in range(20)]
        for stream in streams:
            client.abort(stream.request_id)
            client.abort(stream.request_id)
        client.abort(12_345)
        ends = [finished for _, finished in await asyncio.gather(*map(collect, streams))]
        assert {finished.reason for finished in ends} == {FinishReason.ABORT}
        await until_idle(client)
        for gauge in (metrics.RUNNING, metrics.WAITING, metrics.KV_USAGE):
            assert client.stats.value(gauge) == 0.0
        assert client.stats.value(metrics.SUCCESS, finished_reason="abort") == 20.0
        assert client.num_open_streams == 0
        assert await client.requests() == []

    play(go, maxNumSeqs=4)


@pytest.mark.parametrize("num_turns", range(6))
def test_an_abort_in_any_state_gives_its_blocks_back(play: Play, num_turns: int) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        request = make_request(1, tuple(range(100)), max_tokens=3)
        submitting = asyncio.create_task(client.submit(request))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        client.abort(1)
        _, finished = await collect(await submitting)
        assert finished.reason in {FinishReason.ABORT, FinishReason.LENGTH}
        client.abort(1)
        await until_idle(client)
        assert client.stats.value(metrics.KV_USAGE) == 0.0

    play(go, maxNumBatchedTokens=32)


def test_a_stop_string_ends_the_request_after_so_many_tokens(play: Play) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        stream = await client.submit(make_request(1, max_tokens=400))
        tokens: list[int] = []
        async for delta in stream:
            tokens += delta.token_ids
            if delta.finished is not None:
                break
            if len(tokens) >= 5:
                client.finish(1, 5, "stop")
        assert delta.finished is not None
        assert (delta.finished.reason, delta.finished.num_output_tokens) == (FinishReason.STOP, 5)

    play(go)


def test_a_full_queue_refuses_with_a_time_to_come_back(play: Play) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        submits = [
            asyncio.create_task(client.submit(make_request(i, max_tokens=300))) for i in range(10)
        ]
        done = await asyncio.gather(*submits, return_exceptions=True)
        refused = [one.refusal for one in done if isinstance(one, RequestRefused)]
        assert refused
        assert all(one.status == 503 and one.retry_after_s for one in refused)

    play(go, maxNumSeqs=1, queueMaxRequests=2)


def test_a_deadline_that_passes_in_the_queue_is_answered(play: Play) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        await client.submit(make_request(1, max_tokens=10_000))
        late = await client.submit(make_request(2, timeout_s=0.02))
        tokens, finished = await collect(late)
        assert (tokens, finished.reason) == ([], FinishReason.TIMEOUT)
        client.abort(1)

    play(go, maxNumSeqs=1, numKvBlocks=2000)


@pytest.mark.slow
def test_a_patch_under_load_kills_nothing_and_changes_no_output(play: Play) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        requests = [make_request(i, tuple(range(i, i + 50)), max_tokens=60) for i in range(12)]
        streams = await asyncio.gather(*map(client.submit, requests))
        results = asyncio.gather(*map(collect, streams))
        generation = (await client.settings()).generation
        for size in (2, 12, 1, 5):
            change = await client.patch_settings(
                {"maxNumSeqs": size, "maxNumBatchedTokens": 16 * size}, None
            )
            generation += 1
            assert (change.generation, change.new["maxNumSeqs"]) == (generation, size)
        state = await client.settings()
        assert (state.settings.max_num_seqs, state.generation) == (5, generation)
        for request, result in zip(requests, await results, strict=True):
            tokens, finished = result
            assert (tokens, finished.reason) == solo_tokens(request, runner.limits)
        await until_idle(client)
        assert client.stats.value(metrics.SETTINGS_GENERATION) == generation

    play(go, maxNumSeqs=6, maxNumBatchedTokens=128, bootMaxNumSeqs=12)


@pytest.mark.parametrize(
    ("changes", "revision", "status", "field"),
    [
        ({"maxNumSeqs": 0}, None, 400, "maxNumSeqs"),
        ({"nonsense": 1}, None, 400, "nonsense"),
        ({"maxNumSeqs": 2, "schedulingPolicy": "Lifo"}, None, 400, "schedulingPolicy"),
        ({"maxNumSeqs": 2, "blockSize": 32}, None, 409, "blockSize"),
        ({"maxNumSeqs": 100}, None, 409, "maxNumSeqs"),
        ({"maxNumSeqs": 2}, 0, 412, "maxNumSeqs"),
    ],
)
def test_a_refused_change_leaves_everything_as_it_was(
    play: Play, changes: dict[str, object], revision: int | None, status: int, field: str
) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        before = await client.settings()
        with pytest.raises(SettingRefused) as refused:
            await client.patch_settings(changes, revision)
        assert (refused.value.status, refused.value.field) == (status, field)
        assert await client.settings() == before

    play(go, maxNumSeqs=4, bootMaxNumSeqs=8)


def test_a_step_that_fails_once_is_tried_again(play: Play) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        request = make_request(1, tuple(range(40)), max_tokens=20)
        stream = await client.submit(request)
        runner.fail_steps = MAX_RETRIES
        tokens, finished = await collect(stream)
        assert (tokens, finished.reason) == solo_tokens(request, runner.limits)
        failed = [step["error"] for step in await client.steps(100) if step["error"]]
        assert len([why for why in failed if "the device says no" in why]) == MAX_RETRIES
        behind = failed[1::2] if len(failed) > MAX_RETRIES else []
        assert all("before it failed" in why for why in behind)

    play(go)


def test_a_step_that_goes_on_failing_ends_its_requests_with_an_error(play: Play) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        runner.fail_steps = MAX_RETRIES + 1
        _, finished = await collect(await client.submit(make_request(1)))
        assert finished.reason is FinishReason.ERROR
        assert "the device says no" in finished.message
        request = make_request(2)
        tokens, finished = await collect(await client.submit(request))
        assert (tokens, finished.reason) == solo_tokens(request, runner.limits)
        await until_idle(client)
        assert client.stats.value(metrics.KV_USAGE) == 0.0

    play(go)


def test_a_broken_device_is_not_served_with(play: Play) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        runner.fail_steps = MAX_FAILURES
        for request_id in (1, 2):
            _, finished = await collect(await client.submit(make_request(request_id)))
            assert finished.reason is FinishReason.ERROR
        with pytest.raises(EngineGone):
            await client.submit(make_request(3))
        assert (client.startup.phase, client.startup.reason) == ("Failed", "DeviceBroken")

    play(go)


def test_failures_with_finished_steps_between_them_break_no_device(play: Play) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        for request_id in range(MAX_FAILURES):
            runner.fail_steps = MAX_RETRIES
            _, finished = await collect(await client.submit(make_request(request_id)))
            assert finished.reason is FinishReason.LENGTH

    play(go)


def test_the_flight_recorder_says_what_steps_did(play: Play) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        await collect(await client.submit(make_request(1, tuple(range(40)), max_tokens=5)))
        steps = await client.steps(100)
        assert sum(step["numPrefillTokens"] + step["numDecodeTokens"] for step in steps) == 44
        assert all(step["forwardMs"] > 0 and step["predictedMs"] is not None for step in steps)
        assert await client.steps(1) == steps[-1:]
        overlaps = (await client.settings()).settings.overlap
        assert any(step["queuedMs"] > 0 for step in steps) == overlaps

    play(go, maxNumBatchedTokens=16)


def test_the_heartbeat_tells_idle_from_working(play: Play) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        idle = client.heartbeat
        began = time.monotonic()
        stream = await client.submit(make_request(1, max_tokens=50))
        working = client.heartbeat
        assert (idle.has_work, working.has_work) == (False, True)
        assert working.last_progress_s >= began, "waking up counts as progress"
        await collect(stream)
        await until_idle(client)
        assert client.heartbeat.last_progress_s >= working.last_progress_s

    play(go)


def test_a_cached_prefix_is_told_and_forgotten_on_demand(play: Play) -> None:
    async def go(client: InProcessEngineClient, runner: FakeEngine) -> None:
        prompt = tuple(range(64))
        for request_id, cached in ((1, 0), (2, 48), (3, 0)):
            _, finished = await collect(await client.submit(make_request(request_id, prompt)))
            assert finished.num_cached_tokens == cached
            if request_id == 2:
                assert await client.reset_prefix_cache() > 0

    play(go)

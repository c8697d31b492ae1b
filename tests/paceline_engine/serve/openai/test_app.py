"""The public app on a real port, before the real scheduler; the fake runner answers."""

import asyncio
import itertools
import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from paceline_crds import metrics
from paceline_crds.settings import EngineSettings
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.openai.app import create_public_app
from paceline_engine.serve.step.in_process import InProcessEngineClient
from paceline_engine.testing.bodies import CHAT
from paceline_engine.testing.fake_engine import FakeEngine


class DistantEngine(InProcessEngineClient):
    """Hears of a stop string some steps late, as an engine behind a busy HTTP process does."""

    num_steps_late = 5

    def finish(self, request_id: int, num_output_tokens: int, stop: str) -> None:
        async def later() -> None:
            for _ in range(self.num_steps_late):
                await asyncio.sleep(0)
            super(DistantEngine, self).finish(request_id, num_output_tokens, stop)

        self.messenger = asyncio.create_task(later())


@asynccontextmanager
async def running(
    folder: Path, kind: type[InProcessEngineClient] = InProcessEngineClient, **settings: Any
) -> AsyncIterator[tuple[InProcessEngineClient, int]]:
    """A real server in this event loop; gives the engine and the port."""
    runner = FakeEngine(folder, EngineSettings.model_validate(settings).booted())
    client = kind(runner, model_dir=folder)
    app = create_public_app(client, ServeConfig(model="tiny"), Drain(shutdown_timeout_s=1.0))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield client, listener.getsockname()[1]
    finally:
        await client.close()
        server.should_exit = True
        await task
        listener.close()


def play(
    folder: Path, go: Callable[[InProcessEngineClient, int], Awaitable[None]], **settings: Any
) -> None:
    async def run() -> None:
        async with running(folder, **settings) as (client, port):
            await asyncio.wait_for(go(client, port), 60)

    asyncio.run(run())


async def until_idle(client: InProcessEngineClient) -> None:
    while client.heartbeat.has_work or client.num_open_streams:  # noqa: ASYNC110 - the engine has no such event
        await asyncio.sleep(0.002)


def assert_empty(client: InProcessEngineClient) -> None:
    for gauge in (metrics.RUNNING, metrics.WAITING, metrics.KV_USAGE):
        assert client.stats.value(gauge) == 0.0, gauge


@pytest.mark.slow
def test_whole_and_streamed_answers_agree_over_the_real_loop(tiny_folder: Path) -> None:
    async def go(client: InProcessEngineClient, port: int) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            body = {**CHAT, "max_tokens": 60, "seed": 1, "logprobs": True, "n": 2}
            whole = (await http.post("/v1/chat/completions", json=body)).json()
            streamed = await http.post("/v1/chat/completions", json={**body, "stream": True})
            events = streamed.text.strip().split("\n\n")
            assert events[-1] == "data: [DONE]"
            texts = ["", ""]
            for event in events[:-1]:
                for choice in json.loads(event.removeprefix("data: "))["choices"]:
                    texts[choice["index"]] += choice["delta"].get("content", "")
            assert [c["message"]["content"] for c in whole["choices"]] == texts
            assert whole["usage"]["completion_tokens"] == 120
            stop = texts[0][5:8]
            cut = await http.post("/v1/chat/completions", json={**body, "n": 1, "stop": stop})
            assert cut.json()["choices"][0]["message"]["content"] == texts[0][: texts[0].find(stop)]
            page = await http.get("/metrics")
            assert page.headers["content-type"].startswith("text/plain")
            assert "vllm:generation_tokens_total{" in page.text
        await until_idle(client)
        assert_empty(client)

    play(tiny_folder, go)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_tokens_behind_a_stop_string_are_not_counted(tiny_folder: Path, stream: bool) -> None:
    async def go(client: InProcessEngineClient, port: int) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            body = {"prompt": "the bridge", "max_tokens": 80, "seed": 3}
            whole = await http.post("/v1/completions", json={**body, "logprobs": 0})
            choice = whole.json()["choices"][0]
            stop = spanning(choice["logprobs"]["tokens"], choice["text"])
            await until_idle(client)
            before = client.stats.value(metrics.GENERATION_TOKENS)
            assert before == 80
            body |= {"stop": stop, "stream": stream}
            if stream:
                body["stream_options"] = {"include_usage": True}
            cut = await http.post("/v1/completions", json=body)
            last = cut.text.split("\n\n")[-3].removeprefix("data: ") if stream else cut.text
            usage = json.loads(last)["usage"]
        await until_idle(client)
        assert usage["completion_tokens"] < 80
        counted = client.stats.value(metrics.GENERATION_TOKENS) - before
        assert counted == usage["completion_tokens"]

    play(tiny_folder, go, kind=DistantEngine)


@pytest.mark.slow
@pytest.mark.parametrize("num_behind", [0, 1, 3])
def test_a_stop_in_the_last_tokens_before_the_length_counts_no_more(
    tiny_folder: Path, num_behind: int
) -> None:
    """The engine ends the request by its length before it hears of the stop."""

    async def go(client: InProcessEngineClient, port: int) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            body = {"prompt": "the bridge", "max_tokens": 80, "seed": 3, "logprobs": 0}
            choice = (await http.post("/v1/completions", json=body)).json()["choices"][0]
            body["stop"] = spanning(choice["logprobs"]["tokens"], choice["text"])
            usage = (await http.post("/v1/completions", json=body)).json()["usage"]
            num_counted = usage["completion_tokens"]
            body["max_tokens"] = num_counted + num_behind
            cut = (await http.post("/v1/completions", json=body)).json()
        assert cut["choices"][0]["finish_reason"] == "stop"
        assert cut["usage"]["completion_tokens"] == num_counted
        while client.stats.value(metrics.SUCCESS, finished_reason="stop") < 2:  # noqa: ASYNC110 - the engine has no such event
            await asyncio.sleep(0.001)
        assert client.stats.value(metrics.GENERATION_TOKENS) == 80 + 2 * num_counted
        assert client.stats.value(metrics.SUCCESS, finished_reason="length") == 1
        await until_idle(client)
        assert_empty(client)

    play(tiny_folder, go, kind=DistantEngine)


def spanning(tokens: list[str], text: str) -> str:
    """A stop string that begins in one token and ends in the next; no token holds it alone."""
    for token, following in itertools.pairwise(tokens[10:-10]):
        pair = token[-1:] + following[:1]
        if pair.isalpha() and text.count(pair) == 1 and not any(pair in each for each in tokens):
            return pair
    raise AssertionError(f"no two tokens of {text!r} can be told apart; use another seed")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_503_and_a_late_request_408(tiny_folder: Path, stream: bool) -> None:
    async def go(client: InProcessEngineClient, port: int) -> None:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        long = {**CHAT, "ignore_eos": True, "stream": True}
        async with (
            httpx.AsyncClient(timeout=20) as http,
            http.stream("POST", url, json=long) as first,
        ):
            assert first.status_code == 200  # its first token is here: it runs
            waiting = asyncio.create_task(http.post(url, json={**long, "stream": stream}))
            while len(await client.requests()) < 2:  # noqa: ASYNC110 - the engine has no such event
                await asyncio.sleep(0)
            refused = await http.post(url, json=long)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "service_unavailable_error"
            # It waits already; the queue's limit is live all the same.
            await client.patch_settings({"queueTimeoutS": 1}, None)
            late = await waiting
            assert late.status_code == 408
            assert late.headers["x-should-retry"] == "false"
            assert late.headers["content-type"] == "application/json"
            assert late.json()["error"]["type"] == "timeout_error"
        await until_idle(client)
        assert_empty(client)

    play(tiny_folder, go, maxNumSeqs=1, queueMaxRequests=1)


@pytest.mark.slow
def test_sixteen_clients_before_a_full_queue_are_told_when_to_come_back_and_none_is_lost(
    tiny_folder: Path,
) -> None:
    async def go(client: InProcessEngineClient, port: int) -> None:
        url = f"http://127.0.0.1:{port}/v1/completions"
        endless = {
            "prompt": "the bridge",
            "max_tokens": 10**6,  # clamped to the window: some thousand steps
            "ignore_eos": True,
            "stream": True,
        }
        somebody_ended = asyncio.Condition()
        answered = asyncio.Semaphore(0)  # one for each answer to a first try
        refusals: list[httpx.Response] = []

        async def insist(http: httpx.AsyncClient, number: int) -> httpx.Response:
            body = {"prompt": f"client {number}", "max_tokens": 20, "ignore_eos": True}
            while True:
                answer = await http.post(url, json=body)
                if answer.status_code != 503:
                    break
                refusals.append(answer)
                answered.release()
                async with somebody_ended:
                    await somebody_ended.wait()
            async with somebody_ended:
                somebody_ended.notify_all()
            return answer

        async with httpx.AsyncClient(timeout=60) as http:
            async with (
                http.stream("POST", url, json=endless),
                http.stream("POST", url, json=endless),
            ):
                clients = [asyncio.create_task(insist(http, number)) for number in range(16)]
                for _ in range(12):
                    await answered.acquire()
                waiting = [row for row in await client.requests() if row["state"] == "waiting"]
                assert (len(waiting), len(refusals)) == (4, 12)
            answers = await asyncio.gather(*clients)
        assert all(int(refusal.headers["retry-after"]) >= 1 for refusal in refusals)
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [20] * 16
        await until_idle(client)
        assert client.stats.value(metrics.SUCCESS, finished_reason="length") == 16
        assert client.stats.value(metrics.SUCCESS, finished_reason="abort") == 2
        assert_empty(client)

    play(tiny_folder, go, maxNumSeqs=2, queueMaxRequests=4)


@pytest.mark.slow
def test_cached_prompt_tokens_are_counted_as_such_and_not_twice(tiny_folder: Path) -> None:
    async def go(client: InProcessEngineClient, port: int) -> None:
        body = {"prompt": "the bridge held all of them and the river went on " * 8}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            first = (await http.post("/v1/completions", json=body)).json()["usage"]
            again = await http.post(
                "/v1/completions",
                json={**body, "stream": True, "stream_options": {"include_usage": True}},
            )
            salted = (await http.post("/v1/completions", json={**body, "cache_salt": "s"})).json()
        second = json.loads(again.text.split("\n\n")[-3].removeprefix("data: "))["usage"]
        assert first["prompt_tokens_details"]["cached_tokens"] == 0
        cached = second["prompt_tokens_details"]["cached_tokens"]
        assert 0 < cached < first["prompt_tokens"]
        assert cached % 16 == 0
        assert second["prompt_tokens"] == first["prompt_tokens"]
        assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    play(tiny_folder, go)


async def visit(port: int, rng: random.Random) -> None:
    """Ask for something and go away at some point."""
    body: dict[str, Any] = {
        "stream": rng.random() < 0.6,
        "n": rng.choice([1, 1, 2, 3]),
        "max_tokens": rng.choice([1, 20, 100]),
    }
    if rng.random() < 0.5:
        path, words = "/v1/chat/completions", "river " * rng.randrange(1, 30)
        body["messages"] = [{"role": "user", "content": words}]
    else:
        path = "/v1/completions"
        body["prompt"] = ["the bridge " * rng.randrange(1, 20)] * rng.choice([1, 2])
    if rng.random() < 0.3:
        body["stop"] = ["a", "the"]
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        phase = rng.randrange(5)
        if phase == 0:
            writer.write(request[: rng.randrange(len(request))])
            await writer.drain()
            return
        writer.write(request)
        await writer.drain()
        if phase == 1:
            return
        if phase == 2:
            await asyncio.sleep(rng.random() * 0.3)
        elif phase == 3:
            await reader.read(1)
        else:
            await reader.read(rng.randrange(1, 20_000))
    finally:
        if rng.random() < 0.5:
            writer.transport.abort()
        writer.close()


@pytest.mark.slow
def test_200_clients_that_go_away_at_random_leave_nothing(tiny_folder: Path) -> None:
    async def go(client: InProcessEngineClient, port: int) -> None:
        rng = random.Random(0)
        rngs = [random.Random(rng.random()) for _ in range(200)]
        await asyncio.gather(*(visit(port, one) for one in rngs))
        await until_idle(client)
        # Requests whose bytes were still on their way may begin only now.
        async with httpx.AsyncClient() as http:
            answer = await http.post(
                f"http://127.0.0.1:{port}/v1/chat/completions", json={**CHAT, "max_tokens": 1}
            )
            assert answer.status_code == 200
        await until_idle(client)
        assert await client.requests() == []
        assert_empty(client)

    play(tiny_folder, go, maxNumSeqs=16, maxNumBatchedTokens=256, numKvBlocks=64)

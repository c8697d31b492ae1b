"""The tuner's query, answered by a real Prometheus; and one that does not answer."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from aiohttp import web

from paceline_engine.testing.ports import free_port
from paceline_engine.testing.server_process import server_process
from paceline_engine.testing.tiny_model import TinyModel
from paceline_operator.decide.observed import Measured
from paceline_operator.decide.tuning import queries
from paceline_operator.decide.tuning.asking import Question
from paceline_operator.decide.tuning.signals import Sample, Signal, Window
from paceline_operator.shell.prometheus import Prometheus
from paceline_operator.testing.loopback import answering
from paceline_operator.testing.prometheus import prometheus, target

NUM_REQUESTS = 12
NUM_SCRAPES = 12
NEVER_HERE = {Signal.ACCEPTED, Signal.DRAFTED}
"""Nothing drafts in that engine; the counters may be absent."""


def question(end: int, window_s: int = 30, pods: tuple[str, ...] = ("chat-0",)) -> Question:
    query = queries.sample(queries.pods("models", pods), window_s)
    return Question(window=Window(start=end - window_s, end=end), pods=pods, query=query)


def measured(url: str, *questions: Question) -> Measured:
    async def ask() -> Measured:
        client = Prometheus(url)
        try:
            return await client.measure(questions)
        finally:
            await client.close()

    return asyncio.run(ask())


@pytest.mark.slow
def test_a_real_prometheus_answers_every_signal_and_counts_nothing_twice(
    require_program: Callable[[str], str], tmp_path: Path
) -> None:
    program = require_program("prometheus")
    model = TinyModel(hidden_size=16, num_layers=1).write(tmp_path / "model")
    flags = ["--max-model-len=256", "--max-num-seqs=4", "--num-kv-blocks=64", "--dtype=float32"]
    flags += ["--slo-ttft-ms=2000", "--slo-itl-ms=500", "--slo-e2e-ms=10000"]
    with server_process(str(model), tmp_path, *flags) as engine, ExitStack() as stack:
        pages = [target(engine.url, namespace="models", pod="chat-0")]
        twice = {"one": pages, "two": pages}
        url = stack.enter_context(prometheus(program, twice, tmp_path))
        wait_for(lambda: bool(ask_pods(url)))
        for number in range(NUM_REQUESTS):
            prompt = f"{number} two three " * 9
            body = {"model": "model", "prompt": prompt, "max_tokens": 6, "ignore_eos": True}
            engine.post("/v1/completions", body)
        wait_for(lambda: (finished(url) or 0) > 0.8 * NUM_REQUESTS)
        # With few scrapes a sample is none, and an increase is extrapolated by a third.
        wait_for(lambda: (sample(url).get(Signal.SCRAPES) or 0) >= NUM_SCRAPES)
        found = sample(url)
    assert found.problem is None
    assert set(Signal) - set(found.values) <= NEVER_HERE
    assert found.get(Signal.PODS) == 1
    for signal in (Signal.FINISHED, Signal.JUDGED, Signal.TTFT_JUDGED, Signal.ITL_JUDGED):
        assert found.get(signal) == pytest.approx(NUM_REQUESTS, rel=0.3), signal
    assert found.get(Signal.OUTPUT_LENGTH) == pytest.approx(6)


def sample(url: str) -> Sample:
    return measured(url, question(int(time.time()))).samples[0]


def ask_pods(url: str) -> float | None:
    samples = measured(url, question(int(time.time()))).samples
    return samples[0].get(Signal.SCRAPES) if samples else None


def finished(url: str) -> float | None:
    samples = measured(url, question(int(time.time()))).samples
    return samples[0].get(Signal.FINISHED) if samples else None


def wait_for(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.3)


def test_one_that_is_away_is_a_reason_and_no_error() -> None:
    found = measured(f"http://127.0.0.1:{free_port()}", question(1000))
    assert found.lack == "PrometheusUnreachable"
    assert found.text
    assert found.samples == ()


@pytest.mark.parametrize(
    ("status", "reason"), [(400, "QueryFailed"), (503, "PrometheusUnreachable")]
)
def test_a_refusal_is_told_in_its_own_words_and_what_was_answered_before_is_kept(
    status: int, reason: str
) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        assert (request.method, request.path) == ("POST", "/api/v1/query")
        form = await request.post()
        asked.append(str(form["time"]))
        if len(asked) > 1:
            body = {"status": "error", "error": "too many samples"}
            return web.json_response(body, status=status)
        series = [
            {"metric": {"signal": "running"}, "value": [1000, "2.5"]},
            {"metric": {"signal": "ttft"}, "value": [1000, "NaN"]},
            {"metric": {"signal": "unknown"}, "value": [1000, "1"]},
        ]
        return web.json_response({"status": "success", "data": {"result": series}})

    async def run() -> Measured:
        async with answering(answer) as port:
            client = Prometheus(f"http://127.0.0.1:{port}/")
            try:
                return await client.measure([question(1000), question(1030)])
            finally:
                await client.close()

    found = asyncio.run(run())
    assert asked == ["1000.000", "1030.000"]
    assert (found.lack, "too many samples" in found.text) == (reason, True)
    assert found.samples[0].get(Signal.RUNNING) == 2.5
    assert found.samples[0].get(Signal.TTFT) is None


def test_a_window_without_pods_is_not_asked_for() -> None:
    found = measured(f"http://127.0.0.1:{free_port()}", question(1000, pods=()))
    assert found.lack == ""
    assert found.samples[0].values == {}

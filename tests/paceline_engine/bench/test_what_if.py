"""A prediction against what came, on a tiny model."""

import asyncio
from pathlib import Path

import pytest

from paceline_engine.bench import serve, what_if
from paceline_engine.bench.client import Load, Target
from paceline_engine.bench.recorded import RecordedEngine, Run
from paceline_engine.bench.serve import BenchFailed
from paceline_engine.bench.workloads import Vocabulary
from paceline_engine.testing.loop_server import Receive, Scope, Send, serving_here
from paceline_engine.testing.server_process import server_process
from paceline_engine.testing.tiny_model import write_tiny_model


@pytest.mark.slow
def test_a_change_is_predicted_made_measured_and_taken_back(tmp_path: Path):
    model = write_tiny_model(tmp_path / "model")
    flags = ("--num-kv-blocks", "400", "--max-num-batched-tokens", "256")
    with server_process(str(model), tmp_path, *flags) as running:
        bench = serve.BenchPlan(
            target=Target(base_url=running.url, model=running.model),
            load=Load(),
            names=(),
            vocabulary=Vocabulary.random_ids(10, 250),
            repeats=2,
        )
        question = what_if.Question(
            bench=bench,
            runs=[Run(name="mixed", rate=50.0, limit=6)],
            changes={"maxNumBatchedTokens": 32},
            admin_url=running.admin_url,
        )
        result = what_if.run(question)
        assert RecordedEngine(bench, running.admin_url).settings()["maxNumBatchedTokens"] == 256
    assert (result["from"], result["rounds"]) == ({"maxNumBatchedTokens": 256}, 2)
    parts = result["compared"]["mixed"]
    for line in (*parts["before"], *parts["after"]):
        assert 0.02 < line["simulated"] / line["engine"] < 50
    lines: list[str] = []
    what_if.show(result, lines.append)
    told = [line.strip() for line in lines if line.startswith("\nmixed")]
    assert told == [
        "mixed: the engine as it was (maxNumBatchedTokens=256), and its simulation",
        "mixed: with maxNumBatchedTokens=32, and what was predicted of it",
    ]
    assert len(lines) == 2 * 7


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (401, b"no token", "got HTTP 401: no token; check"),
        (200, b"[1]", "got "),
        (200, b"<", "got "),
    ],
)
def test_an_admin_port_that_answers_something_else_is_told_in_one_line(
    status: int, body: bytes, told: str
):
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def test() -> None:
        async with serving_here(app) as url:
            engine = RecordedEngine(plan_of(url), url)
            with pytest.raises(
                BenchFailed, match=f"must answer /v1/paceline/settings, {told}"
            ) as e:
                await asyncio.to_thread(engine.settings)
            assert len(str(e.value).splitlines()) == 1

    asyncio.run(asyncio.wait_for(test(), 10))


def plan_of(url: str) -> serve.BenchPlan:
    return serve.BenchPlan(
        target=Target(base_url=url, model="m"),
        load=Load(),
        names=(),
        vocabulary=Vocabulary.random_ids(10, 250),
    )

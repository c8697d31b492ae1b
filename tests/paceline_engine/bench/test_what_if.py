"""A prediction against what came, on a tiny model."""

from pathlib import Path

import pytest

from paceline_engine.bench import serve, what_if
from paceline_engine.bench.client import Load, Target
from paceline_engine.bench.recorded import RecordedEngine, Run
from paceline_engine.bench.workloads import Vocabulary
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

"""The comparison of an engine with its simulation: what it plans, and a run on a tiny model."""

from pathlib import Path

import pytest

from paceline_engine.bench import serve, simulator, workloads
from paceline_engine.bench.client import Load, Mode, Target
from paceline_engine.bench.recorded import RecordedEngine, Run
from paceline_engine.bench.workloads import Vocabulary
from paceline_engine.testing.server_process import server_process
from paceline_engine.testing.tiny_model import write_tiny_model


def test_the_simulator_gets_the_plan_of_the_client():
    made = workloads.make("shared_prefix", Vocabulary.random_ids())
    asked = simulator.planned(made, Load(mode=Mode.POISSON, rate=4.0))
    assert [one.arrival_s for one in asked] == [item.arrival_s / 4 for item in made.items]
    assert asked[0].prompt_token_ids[:800] == asked[-1].prompt_token_ids[:800]
    scheduled = workloads.make("interference", Vocabulary.random_ids())
    asked = simulator.planned(scheduled, Load(mode=Mode.SCHEDULE, rate=4.0))
    assert asked[-1].arrival_s == max(item.arrival_s for item in scheduled.items)
    asked = simulator.planned(made, Load(mode=Mode.BATCH))
    assert {one.arrival_s for one in asked} == {0.0}


def test_a_run_is_sent_at_its_rate_or_all_at_once_or_by_its_schedule():
    assert Run(name="mixed", rate=2.0).load == Load(mode=Mode.POISSON, rate=2.0)
    assert Run(name="mixed").load == Load(mode=Mode.BATCH)
    assert Run(name="interference", rate=2.0).load == Load(mode=Mode.SCHEDULE)


@pytest.mark.slow
def test_a_running_engine_is_fitted_and_compared(tmp_path: Path):
    model = write_tiny_model(tmp_path / "model")
    lines: list[str] = []
    with server_process(str(model), tmp_path, "--num-kv-blocks", "400") as running:
        plan = simulator.Comparison(
            bench=serve.BenchPlan(
                target=Target(base_url=running.url, model=running.model),
                load=Load(),
                names=(),
                vocabulary=Vocabulary.random_ids(10, 250),
                repeats=2,
            ),
            fit=[Run(name="decode16", limit=4)],
            compared=[Run(name="heavy_tail", rate=50.0, limit=6)],
            admin_url=running.admin_url,
        )
        result = simulator.run(plan, lines.append)
    assert [line.split(": ")[1] for line in lines] == [
        *("decode16, for the fit", "heavy_tail", "decode16, for the fit", "heavy_tail")
    ]
    lines.clear()
    simulator.show(result, lines.append)
    assert result["fit"]["steps"] >= 200  # of both rounds
    compared = result["compared"]["heavy_tail"]
    assert [line["figure"] for line in compared] == [
        *("TTFT p50, ms", "TTFT p99, ms", "ITL p50, ms", "ITL p99, ms", "output tokens/s")
    ]
    for line in compared:
        assert 0 < line["engine_min"] <= line["engine_max"]
        # A busy machine may be ten times slower in one run; a wrong unit would be a thousand.
        assert 0.02 < line["simulated"] / line["engine"] < 50
    assert len(lines) == 7


def test_an_admin_port_that_does_not_answer_is_told():
    plan = serve.BenchPlan(
        target=Target(base_url="http://127.0.0.1:9", model="m"),
        load=Load(),
        names=(),
        vocabulary=Vocabulary.random_ids(),
    )
    with pytest.raises(serve.BenchFailed, match="check --admin-url"):
        RecordedEngine(plan, "http://127.0.0.1:9").settings()

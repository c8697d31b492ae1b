"""The comparison of an engine with its simulation: its arithmetic, and a run on a tiny model."""

from pathlib import Path

import pytest

from paceline_engine.bench import serve, simulator, workloads
from paceline_engine.bench.client import Load, Mode, Target
from paceline_engine.bench.workloads import Vocabulary
from paceline_engine.testing.server_process import server_process
from paceline_engine.testing.tiny_model import write_tiny_model


def row(ttft: float, itl: float = 10.0, rate: float = 100.0) -> dict[str, object]:
    both = {"p50": ttft, "p99": 2 * ttft}
    return {
        "ttft_ms": both,
        "itl_ms": {"p50": itl, "p99": 2 * itl},
        "output_tokens_per_s": rate,
    }


def test_a_figure_agrees_within_a_tenth_or_among_the_engines_own_runs():
    engine = [row(80.0), row(100.0), row(160.0)]
    verdicts = {}
    for value in (100.0, 109.0, 150.0, 161.0, 79.0):
        lines = simulator.lines_of(engine, [row(value)])
        verdicts[value] = lines[0]["agrees"]
        assert (lines[0]["engine"], lines[0]["engine_max"]) == (100.0, 160.0)
        assert lines[0]["off"] == pytest.approx(value / 100 - 1)
    assert verdicts == {100.0: True, 109.0: True, 150.0: True, 161.0: False, 79.0: False}
    assert not simulator.lines_of([row(1.0, rate=50.0)], [row(1.0, rate=40.0)])[4]["agrees"]


def test_the_simulator_gets_the_plan_of_the_client():
    made = workloads.make("shared_prefix", Vocabulary.random_ids())
    asked = simulator.planned(made, Load(mode=Mode.POISSON, rate=4.0))
    assert [one.arrival_s for one in asked] == [item.arrival_s / 4 for item in made.items]
    assert asked[0].prompt_token_ids[:800] == asked[-1].prompt_token_ids[:800]
    scheduled = workloads.make("interference", Vocabulary.random_ids())
    asked = simulator.planned(scheduled, Load(mode=Mode.SCHEDULE, rate=4.0))
    assert asked[-1].arrival_s == max(item.arrival_s for item in scheduled.items)


@pytest.mark.slow
def test_a_running_engine_is_fitted_and_compared(tmp_path: Path):
    model = write_tiny_model(tmp_path / "model")
    lines: list[str] = []
    with server_process(str(model), tmp_path, "--num-kv-blocks", "400") as running:
        plan = simulator.Comparison(
            bench=serve.BenchPlan(
                target=Target(base_url=running.url, model=running.model),
                load=Load(mode=Mode.POISSON, rate=50.0),
                names=["heavy_tail"],
                vocabulary=Vocabulary.random_ids(10, 250),
                limit=6,
                repeats=2,
            ),
            fit_names=["decode16"],
            admin_url=running.admin_url,
        )
        result = simulator.run(plan)
    simulator.show(result, lines.append)
    assert result["fit"]["steps"] >= 100
    compared = result["compared"]["heavy_tail"]
    assert [line["figure"] for line in compared] == [
        *("TTFT p50, ms", "TTFT p99, ms", "ITL p50, ms", "ITL p99, ms", "output tokens/s")
    ]
    for line in compared:
        assert 0 < line["engine_min"] <= line["engine"] <= line["engine_max"]
        # A busy machine may be ten times slower in one run; a wrong unit would be a thousand.
        assert 0.02 < line["simulated"] / line["engine"] < 50
    assert len(lines) == 7


def test_an_admin_port_that_does_not_answer_is_told():
    plan = simulator.Comparison(
        bench=serve.BenchPlan(
            target=Target(base_url="http://127.0.0.1:9", model="m"),
            load=Load(),
            names=["single"],
            vocabulary=Vocabulary.random_ids(),
        ),
        fit_names=["single"],
        admin_url="http://127.0.0.1:9",
    )
    with pytest.raises(serve.BenchFailed, match="check --admin-url"):
        simulator._Admin(plan).new()

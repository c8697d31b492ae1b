"""The benchmark of the scheduler runs and prints one line of JSON a row."""

import json

import pytest

from paceline_engine.bench import scheduler


@pytest.mark.slow
def test_each_row_says_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert scheduler.main(["--json", "--running", "8"]) == 0
    steady, churn = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (steady["running"], steady["churn"], churn["churn"]) == (8, False, True)
    assert steady["us_per_step"] > 0
    assert steady["us_per_request"] == pytest.approx(steady["us_per_step"] / 8, rel=0.01)


def test_under_churn_a_tenth_ends_and_as_many_arrive_each_step() -> None:
    bench = scheduler._Bench(20, churn=True, num_steps=40)
    list(bench.times(15))
    before = bench._next_id
    list(bench.times(10))
    assert 15 <= bench._next_id - before <= 25

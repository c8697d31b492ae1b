"""The benchmark of the scheduler runs and prints one line of JSON a row."""

import json

import pytest

from paceline_engine.bench import scheduler


@pytest.mark.slow
def test_each_row_says_what_was_measured() -> None:
    lines: list[str] = []
    scheduler.show(lines.append, [8], as_json=True)
    steady, one, tenth = (json.loads(line) for line in lines)
    assert (steady["running"], steady["churn"], one["churn"]) == (8, False, True)
    assert (steady["changed"], one["changed"], tenth["changed"]) == (0, 1, 1)
    assert steady["us_per_step"] > 0
    assert steady["us_per_request"] == pytest.approx(steady["us_per_step"] / 8, rel=0.01)


@pytest.mark.parametrize("changed", [1, 2])
def test_under_churn_so_many_end_and_arrive_each_step(changed: int) -> None:
    bench = scheduler._Bench(20, changed=changed, num_steps=60)
    list(bench.times(25))
    before = bench._next_id
    list(bench.times(20))
    assert bench._next_id - before == pytest.approx(20 * changed, abs=5)


def test_the_table_has_the_published_figures_of_vllm_beside_ours() -> None:
    row = scheduler.Row(
        running=256,
        churn=False,
        changed=0,
        us_per_step=77.0,
        us_per_request=0.301,
        us_per_step_min=70.0,
        cpu_us_per_step=76.0,
        peer_us_per_step=3542.0,
    )
    assert scheduler.line(row).split() == ["256", "0", "77.0", "76.0", "0.301", "3542"]
    assert scheduler.HEAD.split()[-1] == "vLLM*"


@pytest.mark.slow
def test_below_the_table_stands_where_the_figures_of_vllm_are_from() -> None:
    lines: list[str] = []
    scheduler.show(lines.append, [4], as_json=False)
    head, *rows, source = lines
    assert head == scheduler.HEAD
    assert [row.split()[0] for row in rows] == ["4", "4", "4"]
    assert source.startswith("* ")
    assert "published measurement on an AMX machine" in source


def test_the_published_figures_are_those_of_vllm() -> None:
    assert scheduler.PEER_US_PER_STEP == {64: 884.0, 256: 3542.0, 1024: 15939.0}

"""Which target is met at which price, judged from the rows of a run."""

from typing import Any

import pytest

from paceline_engine.bench import interference


def row(kind: str, value: int, p99: float, speed: float, **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "value": value,
        "round": 0,
        "p50_ms": 10.0,
        "p99_ms": p99,
        "max_ms": 2 * p99,
        "p99_under_prefill_ms": p99,
        "share_under_prefill": 0.1,
        "steady_outlives_prefills": True,
        "big_ttft_p50_ms": 500.0,
        "total_tokens_per_s": speed,
        "errors": 0,
        **more,
    }


ROWS = [
    row("steady", 0, 40.0, 300.0),
    row("budget", 64, 55.0, 200.0),
    row("budget", 128, 75.0, 240.0),
    row("budget", 512, 300.0, 280.0),
]


def test_a_target_is_compared_with_the_fastest_budget_that_meets_it() -> None:
    (found,) = interference.verdicts([*ROWS, row("target", 80, 84.0, 252.0, factor=2.0)])
    assert found["best_budget"] == 128
    assert found["throughput_ratio"] == 1.05
    assert found["p99_over_target"] == 1.05
    assert found["is_met"]


def test_a_target_that_no_budget_meets_has_no_ratio() -> None:
    (found,) = interference.verdicts([*ROWS, row("target", 45, 44.0, 150.0, factor=1.1)])
    assert found["best_budget"] is None
    assert found["throughput_ratio"] is None


@pytest.mark.parametrize(("p99", "speed"), [(97.0, 252.0), (84.0, 225.0)])
def test_a_target_that_is_missed_or_dearly_met_is_told(p99: float, speed: float) -> None:
    rows = [*ROWS, row("target", 80, p99, speed, factor=2.0)]
    (found,) = interference.verdicts(rows)
    assert not found["is_met"]
    assert "NOT MET" in interference.table(rows)


def test_the_steady_streams_count_among_the_runs() -> None:
    sweep = interference.Sweep(
        admin_url="", admin_token="", budgets=[64, 128], factors=[2.0], rounds=3
    )
    assert sweep.num_runs == 12


def test_medians_over_rounds_count() -> None:
    runs = [row("target", 80, p99, 240.0, factor=2.0) for p99 in (70.0, 500.0, 72.0)]
    (found,) = interference.verdicts([*ROWS, *runs])
    assert found["p99_ms"] == 72.0


def test_a_run_whose_streams_ended_too_early_is_marked() -> None:
    short = row("budget", 64, 55.0, 200.0, steady_outlives_prefills=False)
    assert "does not count" in interference.table([short])
    assert "does not count" not in interference.table(ROWS)

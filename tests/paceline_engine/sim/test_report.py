"""Figures of runs whose outcome is known, and their table."""

import json

import numpy as np
import pytest

from paceline_engine.sim import report
from paceline_engine.sim.requests import SimRequest, prompt
from paceline_engine.sim.step_cost import LinearCost
from paceline_engine.testing.sim_loads import at_once, scattered, small_simulator


def test_figures_of_a_run_by_hand():
    sim = small_simulator(at_once([5, 5]), cost=LinearCost(step=10.0), slo_itl_ms=10)
    sim.run()
    row = report.row_of(sim, "two")
    assert (row["requests"], row["completed"], row["steps"]) == (2, 2, 5)
    assert row["duration_s"] == 0.05
    assert row["output_tokens_per_s"] == 200.0
    assert row["ttft_ms"] == {
        "n": 2,
        "mean": 10.0,
        "p50": 10.0,
        "p90": 10.0,
        "p99": 10.0,
        "max": 10.0,
    }
    assert row["itl_ms"]["p99"] == pytest.approx(10.0, rel=0.005)
    assert row["e2e_ms"]["max"] == 50.0
    assert row["ended"] == {"length": 2}
    json.dumps(row)


def test_goodput_counts_requests_within_every_target():
    fast, slow = at_once([5]), at_once([5], num_prompt_tokens=400)
    sim = small_simulator(
        [*fast, SimRequest(**{**_fields(slow[0]), "arrival_s": 2.0})],
        cost=LinearCost(step=1.0, prefill_token=1.0),
        slo_ttft_ms=100,
    )
    sim.run()
    row = report.row_of(sim, "targets")
    assert row["slo_attainment"] == 0.5
    assert row["goodput_per_s"] == pytest.approx(1 / row["duration_s"], rel=0.01)


def _fields(asked: SimRequest) -> dict[str, object]:
    return {name: getattr(asked, name) for name in asked.__slots__}


def test_without_targets_there_is_no_goodput():
    sim = small_simulator(at_once([2]))
    sim.run()
    row = report.row_of(sim, "none")
    assert row["goodput_per_s"] is None
    assert "goodput" not in report.table([row])


def test_tenants_are_reported_apart():
    requests = [
        SimRequest(
            arrival_s=0.0,
            prompt_token_ids=prompt(n, 20),
            num_output_tokens=4,
            max_tokens=4,
            tenant="a" if n % 3 else "b",
        )
        for n in range(9)
    ]
    sim = small_simulator(requests)
    sim.run()
    groups = report.row_of(sim, "tenants")["groups"]
    assert {name: group["requests"] for name, group in groups.items()} == {"a": 6, "b": 3}


def test_a_table_has_a_column_per_run_and_a_line_per_figure():
    sims = [small_simulator(scattered(np.random.default_rng(1), 20)) for _ in range(2)]
    for sim in sims:
        sim.run()
    text = report.table([report.row_of(sim, name) for sim, name in zip(sims, "ab", strict=True)])
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["a", "b"]
    assert ["requests", "20", "20"] in lines
    assert all(line[-1] == line[-2] for line in lines[1:])


def test_a_run_in_the_middle_has_figures_too():
    sim = small_simulator(scattered(np.random.default_rng(1), 20))
    assert report.row_of(sim, "before")["requests"] == 0
    sim.advance(0.3)
    assert report.row_of(sim, "early")["ended"]["running"] > 0

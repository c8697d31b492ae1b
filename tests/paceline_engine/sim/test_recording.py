"""Recordings: what is read of them, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline_engine.sim import recording
from paceline_engine.sim.recording import BadRecording
from paceline_engine.sim.requests import SimRequest, continued, prompt
from paceline_engine.sim.simulator import Simulator
from paceline_engine.testing.recordings import recording_of
from paceline_engine.testing.sim_loads import scattered, small_simulator

LOAD = scattered(np.random.default_rng(11), 60)


@pytest.fixture(scope="module")
def ran() -> Simulator:
    sim = small_simulator(LOAD)
    sim.run()
    return sim


def test_arrivals_and_lengths_come_back(ran: Simulator):
    found = recording.read(recording_of(ran, num_blocks=512))
    start_s = LOAD[0].arrival_s
    for one, asked in zip(found.requests, LOAD, strict=True):
        assert one.arrival_s == pytest.approx(asked.arrival_s - start_s, abs=2e-6)
        assert len(one.prompt_token_ids) == len(asked.prompt_token_ids)
        assert one.num_output_tokens == asked.num_output_tokens
        assert one.max_tokens == asked.max_tokens
    assert found.limits.num_blocks == 512
    assert found.settings.max_num_seqs == 16


def test_a_busy_step_takes_until_the_next_plan_and_the_last_one_until_its_end(ran: Simulator):
    found = recording.read(recording_of(ran, num_blocks=512))
    for step in found.steps:
        took_ms = (step.tokens_s - step.started_s) * 1e3
        assert step.cycle_ms == pytest.approx(took_ms, abs=5e-3)


def test_a_step_planned_while_another_ran_took_its_own_time_alone(ran: Simulator):
    body = recording_of(ran, num_blocks=512)
    own = recording.read(body).steps
    steps = body["steps"]
    planned = steps["plannedS"]
    for at in range(len(planned) - 1, 0, -1):
        steps["queuedMs"][at] = (planned[at] - planned[at - 1]) * 1e3
        planned[at] = planned[at - 1]
    for step, expected in zip(recording.read(body).steps, own, strict=True):
        assert step.cycle_ms == pytest.approx(expected.cycle_ms, abs=1e-3)
        assert step.started_s == pytest.approx(expected.started_s, abs=1e-6)


def test_shared_prefixes_and_next_turns_are_rebuilt():
    first = SimRequest(
        arrival_s=0.0, prompt_token_ids=prompt(0, 64), num_output_tokens=40, max_tokens=40
    )
    sibling = SimRequest(
        arrival_s=5.0,
        prompt_token_ids=prompt(1, 90, first.prompt_token_ids[:48]),
        num_output_tokens=1,
        max_tokens=1,
    )
    next_turn = SimRequest(
        arrival_s=6.0,
        prompt_token_ids=prompt(2, 120, continued(first, 96)),
        num_output_tokens=1,
        max_tokens=1,
    )
    sim = small_simulator([first, sibling, next_turn])
    sim.run()
    found = recording.read(recording_of(sim, num_blocks=512))
    again = small_simulator(found.requests)
    again.run()
    assert [served.num_cached_tokens for served in again.ledger.served] == [0, 48, 96]


def test_siblings_share_their_prefix_without_the_request_that_had_it_first():
    prefix = prompt(100, 64)
    siblings = [
        SimRequest(
            arrival_s=float(number),
            prompt_token_ids=prompt(number, 90, prefix),
            num_output_tokens=1,
            max_tokens=1,
        )
        for number in range(4)
    ]
    sim = small_simulator(siblings)
    sim.run()
    found = recording.read(recording_of(sim, num_blocks=512), after_s=0.5)
    again = small_simulator(found.requests)
    again.run()
    assert [served.num_cached_tokens for served in again.ledger.served] == [0, 64, 64]


def test_what_ran_before_a_live_change_is_left_out():
    sim = small_simulator(LOAD)
    sim.advance(1.5)
    change = sim.apply_settings({"maxNumSeqs": 8})
    sim.run()
    found = recording.read(recording_of(sim, num_blocks=512, generation=change.generation))
    assert found.settings.max_num_seqs == 8
    kept = [asked for asked in LOAD if asked.arrival_s > 1.6]
    assert len(kept) <= len(found.requests) < len(LOAD)
    assert min(step.started_s for step in found.steps) < 0.1


def test_all_who_come_after_a_change_of_an_idle_engine_are_kept():
    early, late = scattered(np.random.default_rng(3), 5), scattered(np.random.default_rng(4), 9)
    sim = small_simulator([*early, *(replace(one, arrival_s=500.0) for one in late)])
    sim.advance(400.0)
    change = sim.apply_settings({"maxNumSeqs": 8})
    sim.run()
    found = recording.read(recording_of(sim, num_blocks=512, generation=change.generation))
    assert len(found.requests) == len(late)


def test_a_later_recording_goes_on_behind_an_earlier_one():
    sim = small_simulator(LOAD)
    sim.advance(1.5)
    first = recording.read(recording_of(sim, num_blocks=512))
    sim.run()
    rest = recording.read(recording_of(sim, num_blocks=512), after_s=first.last_arrival_s)
    known = [asked.arrival_s for asked in LOAD if asked.arrival_s > first.last_arrival_s + 1e-5]
    assert len(rest.requests) == len(known)
    assert rest.last_arrival_s == pytest.approx(LOAD[-1].arrival_s, abs=1e-5)


def test_the_recorded_figures_are_those_of_the_run(ran: Simulator):
    row = recording.recorded_row(recording.read(recording_of(ran, num_blocks=512)))
    assert row["completed"] == 60
    ttft = np.median([one.first_token_s - one.arrival_s for one in ran.ledger.served])
    assert row["ttft_ms"]["p50"] == pytest.approx(1e3 * ttft, abs=0.02)
    exact = 1e3 * ran.ledger.gaps.quantile(0.5)
    assert row["itl_ms"]["p50"] == pytest.approx(exact, rel=0.05)


def test_other_files_are_refused(tmp_path: Path, ran: Simulator):
    file = tmp_path / "r.json"
    with pytest.raises(BadRecording, match="must be a recording"):
        recording.load(file)
    file.write_text("{")
    with pytest.raises(BadRecording, match="must be a recording"):
        recording.load(file)
    file.write_text("[1]")
    with pytest.raises(BadRecording, match="GET /v1/paceline/recording"):
        recording.load(file)
    body = recording_of(ran, num_blocks=512)
    file.write_text(json.dumps(body | {"version": 9}))
    with pytest.raises(BadRecording, match="version 9"):
        recording.load(file)
    with pytest.raises(BadRecording, match="no request ended"):
        recording.read(body | {"generation": 5})
    short = body["requests"] | {"arrivalS": [1.0]}
    with pytest.raises(BadRecording, match="one length"):
        recording.read(body | {"requests": short})
    num_requests = len(body["requests"]["prefixOf"])
    for column, value in (("prefixOf", num_requests - 1), ("numPromptTokens", "x")):
        strange = body["requests"] | {column: [value] * num_requests}
        with pytest.raises(BadRecording, match="something else"):
            recording.read(body | {"requests": strange})
    for column in ("numPromptTokens", "numOutputTokens", "maxTokens"):
        for value in (-1, 10**15, float("nan")):
            huge = body["requests"] | {column: [value] * num_requests}
            with pytest.raises(BadRecording, match=f"{column}.*maxModelLen"):
                recording.read(body | {"requests": huge})
    file.write_text("[" * 100_000)
    with pytest.raises(BadRecording, match="must be a recording"):
        recording.load(file)

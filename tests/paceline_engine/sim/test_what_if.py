"""What-if: a replay with unchanged settings is the run itself; a change does what it would do."""

from dataclasses import replace

import numpy as np
import pytest

from paceline_crds.settings import EngineSettings
from paceline_engine.core.errors import SettingRefused
from paceline_engine.sim import recording, what_if
from paceline_engine.sim.recording import BadRecording, Recording
from paceline_engine.sim.requests import SimRequest
from paceline_engine.sim.simulator import Simulator
from paceline_engine.testing.recordings import recording_of
from paceline_engine.testing.sim_loads import SMALL_COST, scattered, small_simulator

LOAD = scattered(
    np.random.default_rng(12), 50, prompt_tokens=(8, 900), output_tokens=(1, 20), rate=30
)
SHIFTED = [
    SimRequest(
        arrival_s=asked.arrival_s - LOAD[0].arrival_s,
        prompt_token_ids=asked.prompt_token_ids,
        num_output_tokens=asked.num_output_tokens,
        max_tokens=asked.max_tokens,
    )
    for asked in LOAD
]


def ran(**settings: object) -> Simulator:
    sim = small_simulator(SHIFTED, **settings)  # type: ignore[arg-type]
    sim.run()
    return sim


@pytest.fixture(scope="module")
def recorded() -> Recording:
    return recording.read(recording_of(ran(), num_blocks=512))


def test_the_cost_model_of_the_recorded_machine_is_found(recorded: Recording):
    fitted = what_if.fit_of(recorded)
    assert fitted.p90_error < 1e-3
    assert fitted.cost.step == pytest.approx(SMALL_COST.step, rel=0.01)


@pytest.mark.slow
def test_a_replay_with_unchanged_settings_is_the_run_itself(recorded: Recording):
    real, again = ran(), what_if.answer(recorded, {}, seed=1).simulators[0]
    for one, other in zip(real.ledger.served, again.ledger.served, strict=True):
        assert other.first_token_s == pytest.approx(one.first_token_s, abs=0.005)
        assert other.end_s == pytest.approx(one.end_s, abs=0.02)
    assert again.ledger.gaps.quantile(0.99) == pytest.approx(
        real.ledger.gaps.quantile(0.99), rel=0.02
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"maxNumBatchedTokens": 64}, {"maxNumSeqs": 4}, {"longPrefillTokens": 32}]
)
def test_the_prediction_for_another_setting_is_what_a_run_with_it_gives(
    recorded: Recording, change: dict[str, int]
):
    settings = EngineSettings.model_validate(change)
    real = ran(**{name: getattr(settings, name) for name in settings.model_fields_set})
    answer = what_if.answer(recorded, change, seed=1)
    predicted = answer.rows[2]
    exact = [1e3 * (one.first_token_s - one.arrival_s) for one in real.ledger.served]
    assert predicted["ttft_ms"]["p50"] == pytest.approx(np.median(exact), rel=0.03)
    assert predicted["itl_ms"]["p99"] == pytest.approx(
        1e3 * real.ledger.gaps.quantile(0.99), rel=0.05
    )
    assert [row["run"] for row in answer.rows][:2] == ["recorded", "simulated, as it was"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer(recorded: Recording):
    one = what_if.answer(recorded, {"maxNumSeqs": 4}, seed=3)
    other = what_if.answer(recorded, {"maxNumSeqs": 4}, seed=3)
    assert one.rows == other.rows


@pytest.mark.slow
def test_a_value_above_the_boot_maximum_is_a_restart_and_is_said(recorded: Recording):
    answer = what_if.answer(recorded, {"maxNumSeqs": 64}, seed=1)
    assert any("bootMaxNumSeqs is raised to 64" in note for note in answer.notes)
    assert answer.simulators[1].settings.max_num_seqs == 64


def test_another_block_size_keeps_the_memory(recorded: Recording):
    settings, notes = what_if.changed(recorded.settings, {"blockSize": 32})
    assert settings.num_kv_blocks == 256
    assert notes == ["blockSize cannot change while an engine runs; it needs a restart"]


@pytest.mark.slow
def test_a_step_larger_than_any_recorded_is_a_guess_and_is_said(recorded: Recording):
    answer = what_if.answer(recorded, {"maxNumBatchedTokens": 4096}, seed=1)
    assert any("are guessed" in note for note in answer.notes)


@pytest.mark.slow
def test_what_a_recording_with_overlap_is_not_told_by_is_said(recorded: Recording):
    assert not any("overlap" in note for note in what_if.answer(recorded, {}, seed=1).notes)
    settings = recorded.settings.model_copy(update={"overlap": True})
    found = what_if.answer(replace(recorded, settings=settings), {}, seed=1)
    assert any("recorded with overlap" in note for note in found.notes)


@pytest.mark.slow
def test_what_a_recording_with_a_host_tier_is_not_told_by_is_said(recorded: Recording):
    settings = recorded.settings.model_copy(update={"kv_offload_host_memory": "1Gi"})
    found = what_if.answer(replace(recorded, settings=settings), {}, seed=1)
    assert any("recorded with kvOffloadHostMemory" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"maxNumSeqs": 0}, "maxNumSeqs must be"),
        ({"nonsense": 1}, "no setting"),
        ({"gpuMemoryUtilization": "0.5"}, "not in a recording"),
        ({"overlap": True}, "overlap is not simulated"),
        ({"kvOffloadHostMemory": "1Gi"}, "kvOffloadHostMemory is not simulated"),
        ({"kvCacheDtype": "FP8"}, "not in a recording"),
        ({"maxNumSeqs": 20, "bootMaxNumSeqs": 10}, "bootMaxNumSeqs"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    recorded: Recording, change: dict[str, object], match: str
):
    with pytest.raises(SettingRefused, match=match):
        what_if.answer(recorded, change, seed=1)


def test_a_recording_of_a_few_steps_is_too_short(recorded: Recording):
    sim = small_simulator(SHIFTED[:1], max_num_batched_tokens=512)
    sim.advance(0.02)
    sim.run()
    found = recording.read(recording_of(sim, num_blocks=512))
    short = Recording(
        model=found.model,
        settings=found.settings,
        limits=found.limits,
        requests=found.requests,
        steps=found.steps[:3],
        first_tokens_s=found.first_tokens_s,
        ends_s=found.ends_s,
        num_preemptions=0,
        last_arrival_s=found.last_arrival_s,
    )
    with pytest.raises(BadRecording, match="record a longer run"):
        what_if.answer(short, {}, seed=1)

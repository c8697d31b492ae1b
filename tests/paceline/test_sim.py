"""`paceline sim` as a person types it."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from paceline import cli
from paceline_engine.testing.recordings import recording_of
from paceline_engine.testing.sim_loads import scattered, small_simulator

SMALL = ["sim", "--workload", "small", "--requests", "60", "--rate", "50"]


@pytest.mark.slow
def test_policies_stand_side_by_side(capsys: pytest.CaptureFixture[str]):
    assert cli.main([*SMALL, "--policy", "Continuous,Static,DualTrack"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["Continuous", "Static", "DualTrack"]
    assert ["completed", "60", "60", "60"] in lines


def test_json_is_a_line_per_run_and_settings_are_flags(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    file = tmp_path / "course.svg"
    flags = ["--max-num-seqs", "2", "--num-kv-blocks", "64", "--slo-ttft-ms", "50"]
    assert cli.main([*SMALL, *flags, "--json", "--plot", str(file)]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["completed"] == 60
    assert 0 < row["slo_attainment"] <= 1
    assert ElementTree.fromstring(file.read_text()).tag.endswith("svg")


@pytest.mark.slow
def test_a_replay_says_what_another_setting_would_have_done(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    sim = small_simulator(scattered(np.random.default_rng(1), 40))
    sim.run()
    file = tmp_path / "recording.json"
    file.write_text(json.dumps(recording_of(sim, num_blocks=512)))
    assert cli.main(["sim", "--replay", str(file), "--set", "maxNumSeqs=2"]) == 0
    out = capsys.readouterr().out
    assert "recorded" in out.splitlines()[0]
    assert "simulated, maxNumSeqs=2" in out.splitlines()[0]
    assert cli.main([*SMALL, "--fit", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 60


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workload", "nonsense"], "--workload must be one of chat"),
        (["--policy", "Fifo"], "--policy must be among Continuous"),
        (["--device", "abacus"], "--device must be one of"),
        (["--overlap"], "overlap is not simulated"),
        (["--kv-offload-host-memory", "1Gi"], "kvOffloadHostMemory is not simulated"),
        (["--set", "maxNumSeqs=2"], "--set belongs to --replay"),
        (["--rate", "-1"], "a number >= 0"),
        (["--replay", "missing.json"], "missing.json must be a recording"),
        (["--replay", "x", "--max-num-seqs", "3"], "--max-num-seqs belongs to a run without"),
        (["--model-shape", "llama-3.1-70b", "--device", "l4"], "choose a smaller model"),
        (["--max-num-seqs", "9", "--boot-max-num-seqs", "3"], "bootMaxNumSeqs"),
    ],
)
def test_mistakes_are_told(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["sim", "--requests", "3", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_short_recording_does_not_hide_a_wrong_setting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    sim = small_simulator(scattered(np.random.default_rng(1), 1, output_tokens=(1, 2)))
    sim.run()
    file = tmp_path / "recording.json"
    file.write_text(json.dumps(recording_of(sim, num_blocks=512)))
    replay = ["sim", "--replay", str(file)]
    assert cli.main(replay) == 2
    assert "record a longer run" in capsys.readouterr().err
    assert cli.main([*replay, "--set", "maxNumSeq=2"]) == 2
    assert "maxNumSeq is no setting; expected one of" in capsys.readouterr().err
    assert cli.main([*replay, "--set", "dtype=Float16"]) == 2
    assert "what dtype does" in capsys.readouterr().err


def test_the_workloads_are_listed(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["sim", "--workload", "list"]) == 0
    assert {"chat", "mixed"} <= set(capsys.readouterr().out.split())

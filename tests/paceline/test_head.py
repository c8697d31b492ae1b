"""`paceline head`: recording, then training that stops for time and goes on."""

from pathlib import Path

import pytest

from paceline import cli
from paceline.head import MORE_TO_DO
from paceline_engine.model.families import load_config
from paceline_engine.testing.tiny_model import TinyModel


@pytest.mark.slow
def test_a_head_is_recorded_and_trained_in_pieces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = TinyModel(num_layers=1).write(tmp_path / "model")
    data, out = tmp_path / "data", tmp_path / "out"
    record = ["head", "record", str(model), "--out", str(data), "--pieces", "1", "--texts", "4"]
    assert cli.main([*record, "--max-tokens", "8"]) == 0
    train = ["head", "train", str(model), "--data", str(data), "--out", str(out), "--form", "Mtp"]
    train += ["--epochs", "2", "--max-minutes", "1e-9"]
    assert cli.main(train) == MORE_TO_DO
    assert load_config(out).num_mtp_layers == 1
    assert cli.main(train) == 0
    said = capsys.readouterr().out
    assert "piece-0000" in said
    assert "goes on behind epoch 1" in said
    assert "epoch 2: loss" in said


def test_without_anything_recorded_it_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = TinyModel(num_layers=1).write(tmp_path / "model")
    command = ["head", "train", str(model), "--data", str(tmp_path), "--out", str(tmp_path / "o")]
    assert cli.main(command) == 2
    assert "record some first" in capsys.readouterr().err

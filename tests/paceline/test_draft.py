"""`paceline draft` writes a folder that drafts, and says what is wrong with what it was given."""

import io
from pathlib import Path

import pytest

from paceline import cli
from paceline_engine.testing.tiny_model import TinyModel


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return TinyModel(num_layers=3).write(tmp_path / "target")


def test_it_says_which_layers_stayed(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "draft"
    assert cli.main(["draft", str(target), "--layers", "2", "--out", str(out)]) == 0
    assert f"{out}: layers 0, 2 of {target}" in capsys.readouterr().out
    assert (out / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("layers", "out", "part"),
    [
        ("3", "draft", "layers must be 1 to 2 of 3, got 3"),
        ("2", "target", "--out must be a new folder"),
    ],
)
def test_what_cannot_be_cut_is_told(
    target: Path, tmp_path: Path, layers: str, out: str, part: str
) -> None:
    stderr = io.StringIO()
    argv = ["draft", str(target), "--layers", layers, "--out", str(tmp_path / out)]
    assert cli.main(argv, stderr) == 2
    assert part in stderr.getvalue()
    assert not (tmp_path / "draft").exists()

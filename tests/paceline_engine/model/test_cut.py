"""A draft model that is cut out of its target computes the layers that it kept."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from paceline_engine.model.cut import cut_draft_model, kept_layers
from paceline_engine.model.families import load_config
from paceline_engine.run.offline import OfflineEngine
from paceline_engine.testing.runners import load_runner
from paceline_engine.testing.tiny_model import TinyModel


@pytest.mark.parametrize("num_shards", [1, 2])
def test_the_first_layers_and_the_last_stay_under_new_numbers(
    tmp_path: Path, num_shards: int
) -> None:
    whole = TinyModel(num_layers=4).write(tmp_path / "whole")
    target = TinyModel(num_layers=4, num_shards=num_shards).write(tmp_path / "target")
    out = tmp_path / "draft"
    assert cut_draft_model(target, out, 3) == [0, 1, 3]
    left, right = load_file(whole / "model.safetensors"), load_file(out / "model.safetensors")
    assert load_config(out).num_layers == 3
    assert len(right) == len(left) - 9
    name = "mlp.down_proj.weight"
    for new, old in enumerate((0, 1, 3)):
        assert (right[f"model.layers.{new}.{name}"] == left[f"model.layers.{old}.{name}"]).all()
    assert (right["lm_head.weight"] == left["lm_head.weight"]).all()
    assert (out / "tokenizer.json").read_bytes() == (target / "tokenizer.json").read_bytes()


def test_kinds_of_layers_follow_their_layers(tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention"] * 2
    window = {"use_sliding_window": True, "sliding_window": 8, "layer_types": kinds}
    target = TinyModel(family="qwen2", num_layers=4, overrides=window).write(tmp_path / "target")
    cut_draft_model(target, tmp_path / "draft", 2)
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert config["layer_types"] == ["full_attention", "sliding_attention"]
    assert load_config(tmp_path / "draft").sliding_windows == (None, 8)


def test_it_drafts_for_its_target(tmp_path: Path) -> None:
    target = TinyModel(num_layers=2).write(tmp_path / "target")
    cut_draft_model(target, tmp_path / "draft", 1)
    runner = load_runner(
        target,
        speculative_method="DraftModel",
        speculative_model=str(tmp_path / "draft"),
        speculative_num_tokens=3,
        speculative_adaptive=False,
    )
    session = OfflineEngine(runner)
    session.submit([5, 6, 7, 8], max_tokens=12)
    plain = OfflineEngine(runner, speculative_num_tokens=0)
    plain.submit([5, 6, 7, 8], max_tokens=12)
    assert session.run() == plain.run()


@pytest.mark.parametrize("num_kept", [0, 4, 5])
def test_a_number_of_layers_that_is_no_cut_is_refused(num_kept: int) -> None:
    with pytest.raises(ValueError, match=f"layers must be 1 to 3 of 4, got {num_kept}"):
        kept_layers(4, num_kept)


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    target = TinyModel(num_layers=2).write(tmp_path / "target")
    with pytest.raises(FileExistsError):
        cut_draft_model(target, target, 1)
    assert load_config(target).num_layers == 2

import json
from pathlib import Path

import pytest

from paceline_engine.core.errors import StartFailed
from paceline_engine.model.families import load_config
from paceline_engine.testing.tiny_model import TinyModel


def folder_with(folder: Path, overrides: dict[str, object], end_tokens: object = 2) -> Path:
    folder.joinpath("config.json").write_text(
        json.dumps(TinyModel(overrides=overrides).config(512)), encoding="utf-8"
    )
    folder.joinpath("generation_config.json").write_text(json.dumps({"eos_token_id": end_tokens}))
    return folder


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"hidden_size": "x"}, "'x'"),
        ({"hidden_size": None}, "another form"),
        ({"rms_norm_eps": []}, "another form"),
        ({"rope_theta": "x"}, "'x'"),
        ({"rope_scaling": "x"}, "another form"),
        ({"quantization_config": [1]}, "another form"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
        ({"num_attention_heads": 0, "head_dim": None}, "another form"),
        ({"num_key_value_heads": 3}, "KV heads"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope scaling factor"),
        ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, "rope scaling factor"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(
    overrides: dict[str, object], named: str, tmp_path: Path
) -> None:
    with pytest.raises(StartFailed, match=named) as refused:
        load_config(folder_with(tmp_path, overrides))
    assert refused.value.reason == "UnsupportedModel"


@pytest.mark.parametrize("end_tokens", ["x", [None], [True], -1, [2, 512]])
def test_end_tokens_are_token_ids_of_this_model(end_tokens: object, tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="eos_token_id"):
        load_config(folder_with(tmp_path, {}, end_tokens))


def test_end_tokens_come_from_the_generation_config_first(tmp_path: Path) -> None:
    assert load_config(folder_with(tmp_path, {"eos_token_id": 5}, [2, 511])).eos_token_ids == (
        2,
        511,
    )
    assert load_config(folder_with(tmp_path, {"eos_token_id": 5}, None)).eos_token_ids == (5,)

"""What config.json may say of quantisation: scales of an FP8 KV cache, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.core.errors import StartFailed
from paceline_engine.model.families import load_config
from paceline_engine.testing.tiny_model import TinyModel

SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
KV_ALONE: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "config_groups": {},
    "kv_cache_scheme": SCHEME,
}


def folder_with(tmp_path: Path, quantization: dict[str, Any]) -> Path:
    return TinyModel(overrides={"quantization_config": quantization}).write(tmp_path)


def test_a_checkpoint_that_quantises_the_cache_alone_is_read(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, KV_ALONE)
    assert json.loads((folder / "config.json").read_text())["quantization_config"]
    assert load_config(folder).num_layers == 2


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "gptq"}, "quantised checkpoint .*'gptq'"),
        ({**KV_ALONE, "config_groups": {"group_0": {}}}, "quantised checkpoint"),
        ({**KV_ALONE, "kv_cache_scheme": None}, "quantised checkpoint"),
        ({**KV_ALONE, "kv_cache_scheme": {**SCHEME, "num_bits": 4}}, "kv_cache_scheme"),
        ({**KV_ALONE, "kv_cache_scheme": {**SCHEME, "dynamic": True}}, "kv_cache_scheme"),
        ({**KV_ALONE, "kv_cache_scheme": {**SCHEME, "symmetric": False}}, "kv_cache_scheme"),
    ],
)
def test_what_else_is_quantised_is_refused_by_name(
    tmp_path: Path, quantization: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartFailed, match=message) as failed:
        load_config(folder_with(tmp_path, quantization))
    assert failed.value.reason == "UnsupportedModel"

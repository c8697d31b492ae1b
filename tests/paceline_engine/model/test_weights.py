from pathlib import Path

import pytest

from paceline_engine.core.errors import StartFailed
from paceline_engine.model.families import load_config
from paceline_engine.model.weights import load_weights
from paceline_engine.testing.tiny_model import TinyModel


@pytest.mark.parametrize(
    "index", ["{", "{}", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "\xff"]
)
def test_an_index_of_another_form_is_refused(index: str, tmp_path: Path) -> None:
    folder = TinyModel(hidden_size=16, num_layers=1).write(tmp_path)
    (folder / "model.safetensors.index.json").write_text(index, encoding="latin-1")
    with pytest.raises(StartFailed, match=r"index\.json") as refused:
        load_weights(folder, load_config(folder), "torch", lambda share: None)
    assert refused.value.reason == "UnsupportedModel"

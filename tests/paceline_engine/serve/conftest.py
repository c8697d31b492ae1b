from pathlib import Path

import pytest

from paceline_engine.testing.tiny_model import TinyModel


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with tokenizer and chat template."""
    return TinyModel(hidden_size=16, num_layers=1).write(tmp_path_factory.mktemp("tiny"))

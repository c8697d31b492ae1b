"""Real runners of small models, as tests want them."""

from pathlib import Path
from typing import Any

from paceline_crds.settings import DType, EngineSettings
from paceline_engine.run.runner import Runner


def load_runner(folder: Path, **settings: Any) -> Runner:
    """A runner of a small model in float32, with noise that is the same in every run."""
    settings = {"dtype": DType.FLOAT32, "num_kv_blocks": 128, **settings}
    return Runner.load(folder, EngineSettings(**settings), _quiet, engine_seed=1)


def _quiet(_phase: str, _share: float) -> None:
    """Progress that nobody watches."""

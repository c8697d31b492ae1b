"""Recordings as an engine would give them for download, made by a simulator."""

from typing import Any

from paceline_engine.core.live_settings import SettingsState
from paceline_engine.serve.admin import flight_recorder
from paceline_engine.serve.step.engine_client import EngineInfo
from paceline_engine.sim.simulator import Simulator


def recording_of(sim: Simulator, *, num_blocks: int, generation: int = 0) -> dict[str, Any]:
    """The body of `GET /v1/paceline/recording` of an engine that ran like this simulator."""
    settings = sim.settings
    info = EngineInfo(
        model="simulated",
        model_dir="",
        revision="",
        max_model_len=(num_blocks - 1) * settings.block_size,
        num_blocks=num_blocks,
        block_size=settings.block_size,
        vocab_size=1000,
        eos_token_ids=(),
        dtype="Float32",
        kv_cache_dtype="Float32",
    )
    state = SettingsState(settings=settings, generation=generation, revision=0)
    return flight_recorder.recording(sim.recording(), info, state)

"""Puts a step loop together around a loaded runner, for the step process and for tests alike."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from paceline_crds.settings import EngineSettings
from paceline_engine.core.live_settings import SettingsBook
from paceline_engine.core.scheduler import Scheduler
from paceline_engine.core.stats import Recorder
from paceline_engine.run.executor import StepRunner
from paceline_engine.run.pipeline import MAX_OUTSTANDING
from paceline_engine.serve.step.engine_client import EngineInfo, Heartbeat
from paceline_engine.serve.step.loop import StepLoop
from paceline_engine.serve.step.messages import FromEngine


class LoadedRunner(StepRunner, Protocol):
    """A runner with what the rest of the house wants to know of it."""

    @property
    def settings(self) -> EngineSettings:
        """Booted, with the dtype that was chosen."""
        ...

    @property
    def memory_plan(self) -> Mapping[str, int]:
        """As in `EngineInfo`."""
        ...

    @property
    def kernels(self) -> Mapping[str, str]:
        """As in `EngineInfo`."""
        ...

    @property
    def kv_divergence(self) -> Mapping[str, float]:
        """As in `EngineInfo`."""
        ...


def assemble(
    runner: LoadedRunner,
    *,
    settings: EngineSettings | None = None,
    clock: Callable[[], float],
    publish: Callable[[FromEngine], None],
    beat: Callable[[Heartbeat], None] = lambda _: None,
    revision: int = 0,
    seconds_by_phase: Mapping[str, float] | None = None,
) -> StepLoop:
    """A loop with its own scheduler, recorder and settings book.

    Args:
        runner: what computes steps.
        settings: in force from the start; None for the runner's own.
        clock: monotonic seconds, the clock of `Request.arrival_s`.
        publish: takes what the loop says to its client.
        beat: takes the heartbeat.
        revision: of the settings that the engine was started with.
        seconds_by_phase: how long the start took.
    """
    settings = settings or runner.settings
    recorder = Recorder(settings, runner.limits)
    recorder.startup(seconds_by_phase or {}, runner.kv_divergence)
    recorder.settings_applied(settings, generation=0, revision=revision)
    scheduler = Scheduler(settings, runner.limits, recorder, max_plans=MAX_OUTSTANDING)
    book = SettingsBook(settings, revision=revision)
    return StepLoop(scheduler, runner, recorder, book, clock=clock, publish=publish, beat=beat)


def engine_info(runner: LoadedRunner, *, model: str, model_dir: Path, revision: str) -> EngineInfo:
    """The facts of a loaded engine."""
    limits = runner.limits
    return EngineInfo(
        model=model,
        model_dir=str(model_dir),
        revision=revision,
        max_model_len=limits.max_model_len,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        vocab_size=limits.vocab_size,
        eos_token_ids=limits.eos_token_ids,
        dtype=runner.settings.dtype.value,
        kv_cache_dtype=runner.settings.kv_cache_dtype.value,
        memory_plan=dict(runner.memory_plan),
        kernels=dict(runner.kernels),
        kv_divergence=dict(runner.kv_divergence),
    )

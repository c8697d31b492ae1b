"""A runner for tests of the real step process, without torch and driven by files.

The config's `runner_factory` names `load`; the test writes into the model folder what shall
happen: `hang` (steps wait while it exists), `fail` (steps raise while it exists), `slow_load`
(loading waits while it exists), `start_failed` (its text is the reason), `step_ms` (how long each
step takes), `slow_exit` (the interpreter's end takes longer than anybody waits), `gpu_memory_bytes`
(it stands for a GPU with so much memory; without it for a CPU).
"""

import atexit
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from paceline_crds import objective
from paceline_crds.phases import StartFailure
from paceline_crds.settings import EngineSettings
from paceline_engine.core.errors import StartFailed
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import StepPlan, StepResult
from paceline_engine.testing.fake_runner import FakeRunner

FACTORY = "paceline_engine.testing.fake_engine:load"
_POLL_S = 0.002
_SLOW_EXIT_S = 600.0
NUM_BLOCKS = 512
VOCAB_SIZE = 1000


def load(
    model_dir: Path, settings: EngineSettings, progress: Callable[[str, float], None]
) -> "FakeEngine":
    """What `Runner.load` is for a real model."""
    reason_file = model_dir / "start_failed"
    if reason_file.exists():
        raise StartFailed(
            cast("StartFailure", reason_file.read_text().strip()), "the test wants it so"
        )
    if (model_dir / "slow_exit").exists():
        atexit.register(time.sleep, _SLOW_EXIT_S)
    progress("Loading", 0.5)
    while (model_dir / "slow_load").exists():
        time.sleep(_POLL_S)
        progress("Loading", 0.5)
    progress("Planning", 1.0)
    memory_file = model_dir / "gpu_memory_bytes"
    memory = int(memory_file.read_text()) if memory_file.exists() else None
    return FakeEngine(model_dir, objective.for_device(settings, memory).booted())


class FakeEngine:
    """A `LoadedRunner` around the fake runner.

    Attributes:
        fail_steps: so many of the next steps raise.
    """

    def __init__(self, model_dir: Path, settings: EngineSettings) -> None:
        self.settings = settings
        num_blocks = settings.num_kv_blocks or NUM_BLOCKS
        longest = (num_blocks - 1) * settings.block_size
        self.limits = EngineLimits(
            num_blocks=num_blocks,
            block_size=settings.block_size,
            max_model_len=min(settings.max_model_len or longest, longest),
            max_slots=settings.boot_max_num_seqs or settings.max_num_seqs,
            max_step_tokens=settings.boot_max_num_batched_tokens or settings.max_num_batched_tokens,
            vocab_size=_vocab_size(model_dir),
            eos_token_ids=(),
            cache_root=b"fake",
        )
        self.memory_plan = {"kvBytes": 0}
        self.kernels = {"attention": "fake"}
        self.kv_divergence: dict[str, float] = {}
        self._runner = FakeRunner(self.limits)
        self.fail_steps = 0
        self._model_dir = model_dir
        step_file = model_dir / "step_ms"
        self._step_s = float(step_file.read_text()) / 1e3 if step_file.exists() else 0.0

    def forward(self, plan: StepPlan) -> None:
        """As the fake runner, after what the files want."""
        while (self._model_dir / "hang").exists():
            time.sleep(_POLL_S)
        time.sleep(self._step_s)
        if self.fail_steps > 0 or (self._model_dir / "fail").exists():
            self.fail_steps -= 1
            raise RuntimeError("the device says no")
        self._runner.forward(plan)

    def do_spare_work(self) -> bool:
        """Nothing may wait."""
        return False

    def sample(self, masks: Any = None) -> StepResult:
        """As the fake runner."""
        return self._runner.sample(masks)


def _vocab_size(model_dir: Path) -> int:
    """That of the folder's config, so that a real tokenizer can read what the runner says."""
    config = model_dir / "config.json"
    if not config.exists():
        return VOCAB_SIZE
    return int(json.loads(config.read_text())["vocab_size"])

"""A preempted request comes back: from the host tier, and computed again.

Two requests share a pool that holds one of them. The one that came first grows until it has every
block, so the other is preempted, loses all of its blocks, and returns when the first has ended.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from paceline_crds import metrics
from paceline_crds.settings import DType, EngineSettings
from paceline_engine.run.offline import OfflineEngine
from paceline_engine.run.runner import Runner

BLOCK_SIZE = 16
_SPARE_BLOCKS = 2
_OUTPUT_TOKENS = 64
_FIRST, _LONG = 0, 1


def measure(
    folder: Path,
    *,
    num_blocks: int,
    host_memory: str,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Both ways in turns on one model in float32, without and then with a host tier.

    Args:
        folder: of the model.
        num_blocks: of the pool, block 0 not included; half of it is the prompt that comes back.
        host_memory: of the host tier.
        clock: by which the engine learns what computing takes.
    """
    return {
        name: _run(folder, num_blocks, memory, clock)
        for name, memory in (("recompute", None), ("offload", host_memory))
    }


def _run(
    folder: Path, num_blocks: int, host_memory: str | None, clock: Callable[[], float]
) -> dict[str, Any]:
    settings = EngineSettings(
        dtype=DType.FLOAT32,
        block_size=BLOCK_SIZE,
        num_kv_blocks=num_blocks + 1,
        watermark="0",
        max_num_seqs=2,
        kv_offload_host_memory=host_memory,
    )
    runner = Runner.load(folder, settings, lambda _phase, _share: None, engine_seed=1)
    engine = OfflineEngine(runner, clock=clock)
    for _ in range(500):
        engine.expected.observe(0, 1000)  # so that both are let in
    capacity = num_blocks * BLOCK_SIZE
    long_tokens = capacity // 2
    first_tokens = capacity - long_tokens - _SPARE_BLOCKS * BLOCK_SIZE
    rng = np.random.default_rng(1234)
    high = min(runner.limits.vocab_size, 10_000)
    for count, outputs in ((first_tokens, capacity - first_tokens), (long_tokens, _OUTPUT_TOKENS)):
        prompt = rng.integers(100, high, count).tolist()
        engine.submit(prompt, max_tokens=outputs, ignore_eos=True)
    return_ms = _step_through(engine)
    steps = engine.recorder.steps(8192)
    return {
        "preemptions": int(engine.value(metrics.PREEMPTIONS)),
        "recomputed_tokens": int(engine.value(metrics.RECOMPUTED)),
        "loaded_tokens": int(engine.value(metrics.OFFLOAD_SAVED)),
        "stored_bytes": int(engine.value(metrics.OFFLOAD_STORE_BYTES)),
        "store_ms": round(sum(step["store_ms"] for step in steps), 3),
        "loaded_bytes": int(engine.value(metrics.OFFLOAD_LOAD_BYTES)),
        "load_ms": round(sum(step["load_ms"] for step in steps), 3),
        "return_ms": round(return_ms, 1),
        "tokens": engine.outputs[_LONG],
    }


def _step_through(engine: OfflineEngine) -> float:
    """Run to the end; milliseconds from the return of the long request to its next token."""
    return_ms, had = 0.0, -1
    while True:
        before, returns = len(engine.outputs[_LONG]), engine.num_returns
        started = time.perf_counter()
        if not engine.step():
            break
        spent_ms = (time.perf_counter() - started) * 1e3
        if engine.num_returns > returns:
            had = before
        if had >= 0:
            return_ms += spent_ms
            if len(engine.outputs[_LONG]) > had:
                had = -1
    engine.run()
    return return_ms

"""Blocks that come back from the host are those that went there, bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline_crds import metrics
from paceline_engine.core.plan import StepPlan
from paceline_engine.run.host_tier import HostTier, copy
from paceline_engine.run.offline import OfflineEngine
from paceline_engine.run.runner import Runner
from paceline_engine.testing.runners import load_runner
from paceline_engine.testing.tiny_model import TinyModel
from paceline_kernels import ops
from paceline_kernels.paged_kv import LayerKv

BLOCK_BYTES = 2 * 2 * 16 * 32 * 4
"""Of the tiny model in float32: keys and values, layers, tokens, heads of one, bytes."""


def layers(impl: str, dtype: torch.dtype, count: int = 3) -> list[LayerKv]:
    caches = [ops.new_kv_cache(8, 16, 2, 16, dtype, impl=impl) for _ in range(count)]
    generator = torch.Generator().manual_seed(0)
    for pair in caches:
        for cache in pair:
            cache.copy_(torch.randn(cache.shape, generator=generator))
    return [LayerKv(*pair) for pair in caches]


def contents(kv: list[LayerKv], block: int) -> list[torch.Tensor]:
    return [cache[block].float().clone() for layer in kv for cache in layer[:2]]


def int32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize("impl", ["torch", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_a_block_comes_back_in_every_layer_and_format(impl: str, dtype: torch.dtype) -> None:
    kv = layers(impl, dtype)
    tier = HostTier(kv, 4)
    before = {block: contents(kv, block) for block in range(8)}
    tier.store(int32(5, 2), int32(3, 0))
    for layer in kv:
        layer.k_cache[5] = layer.v_cache[2] = 0.0
    tier.load(int32(0, 3), int32(7, 1))
    for block, came_from in ((7, 2), (1, 5)):
        for now, then in zip(contents(kv, block), before[came_from], strict=True):
            assert torch.equal(now, then)
    for block in (0, 3, 4, 6):
        for now, then in zip(contents(kv, block), before[block], strict=True):
            assert torch.equal(now, then), "a block that nobody named was written"


def test_a_plan_stores_before_it_loads() -> None:
    kv = layers("torch", torch.float32)
    tier = HostTier(kv, 2)
    first = contents(kv, 1)
    empty = np.empty(0, dtype=np.int32)
    plan = StepPlan(
        step_id=0,
        slots=empty,
        starts=empty,
        num_tokens=empty,
        num_drafts=empty,
        samples=empty.astype(np.bool_),
        epochs=empty,
        request_ids=empty.astype(np.int64),
        store_blocks=int32(1),
        store_slots=int32(0),
        load_slots=int32(0),
        load_blocks=int32(1),
    )
    for layer in kv:
        layer.k_cache[2].copy_(layer.k_cache[1])
    times = copy(tier, plan)
    assert all(map(torch.equal, contents(kv, 1), first))
    assert times.store_ms > 0
    assert times.load_ms > 0
    assert copy(None, plan).load_ms == 0


def test_memory_is_taken_where_it_is_written() -> None:
    kv = layers("torch", torch.float32)
    pages = Path("/proc/self/statm")
    before = int(pages.read_text(encoding="ascii").split()[1])
    tier = HostTier(kv, 100_000)
    tier.store(int32(1), int32(99_999))
    assert int(pages.read_text(encoding="ascii").split()[1]) - before < 4096


def test_a_cache_whose_blocks_are_no_run_of_memory_is_refused() -> None:
    strided = torch.zeros(16, 8, 2, 16)[::2]
    with pytest.raises(ValueError, match="no run of memory"):
        HostTier([LayerKv(strided, strided)], 2)


# -- whole runs -------------------------------------------------------------------------------


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(4)
    return [rng.integers(3, 500, length).tolist() for length in (120, 70, 33, 90, 16, 51)]


def runner_with(folder: Path, num_host_blocks: int, **settings: Any) -> Runner:
    if num_host_blocks:
        settings["kv_offload_host_memory"] = str(num_host_blocks * BLOCK_BYTES)
    return load_runner(folder, **{"num_kv_blocks": 14, **settings})


def run(runner: Runner, **settings: Any) -> OfflineEngine:
    """All prompts at once, in a pool that lets too many in; then each again."""
    session = OfflineEngine(runner, watermark="0", **settings)
    for _ in range(500):
        session.expected.observe(0, 1000)
    for _ in range(2):
        for prompt in prompts():
            session.submit(prompt, max_tokens=40)
        while session.step():
            pass
    session.run()
    return session


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[int, list[int]]:
    return run(runner_with(folder, 0, num_kv_blocks=128)).outputs


@pytest.mark.slow
@pytest.mark.parametrize("num_host_blocks", [0, 1, 5, 100])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("budget", [32, 2048])
def test_greedy_tokens_are_the_same_whatever_the_host_holds(
    folder: Path,
    expected: dict[int, list[int]],
    num_host_blocks: int,
    overlap: bool,
    budget: int,
) -> None:
    runner = runner_with(folder, num_host_blocks)
    session = run(runner, overlap=overlap, max_num_batched_tokens=budget)
    assert session.outputs == expected
    assert session.value(metrics.PREEMPTIONS) > 0
    if num_host_blocks != 1:  # one block alone is hit by luck
        assert (session.value(metrics.OFFLOAD_LOAD_BYTES) > 0) == (num_host_blocks > 0)


@pytest.mark.slow
def test_with_drafts_they_are_the_same_too(folder: Path, expected: dict[int, list[int]]) -> None:
    drafts = {"speculative_method": "Ngram", "speculative_num_tokens": 3}
    runner = runner_with(folder, 100, **drafts)
    session = run(runner, speculative_adaptive=False)
    assert session.outputs == expected
    assert session.value(metrics.OFFLOAD_LOAD_BYTES) > 0
    assert session.value(metrics.SPEC_DRAFT_TOKENS) > 0


def test_the_setting_becomes_blocks_and_stands_in_the_memory_plan(folder: Path) -> None:
    runner = runner_with(folder, 8, num_kv_blocks=64)
    assert (runner.limits.num_host_blocks, runner.limits.block_bytes) == (8, BLOCK_BYTES)
    assert runner.memory_plan["host_tier"] == 8 * BLOCK_BYTES
    assert "host_tier" not in runner_with(folder, 0).memory_plan


def test_in_a_roomy_pool_nothing_is_copied(folder: Path) -> None:
    session = OfflineEngine(runner_with(folder, 8, num_kv_blocks=64))
    session.submit(prompts()[0], max_tokens=4)
    session.run()
    assert session.value(metrics.OFFLOAD_STORE_BYTES) == 0

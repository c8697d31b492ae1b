"""Memory is divided for the boot maxima, and what cannot fit is said before it fails."""

from pathlib import Path

import pytest

from paceline_crds.settings import EngineSettings
from paceline_engine.core.errors import StartFailed
from paceline_engine.model.config import ModelConfig, RopeConfig
from paceline_engine.run.host_memory import available_bytes
from paceline_engine.run.memory_plan import (
    CPU_KV_LIMIT_BYTES,
    MemoryPlan,
    plan_host_tier,
    plan_memory,
)

GIB = 1 << 30
CONFIG = ModelConfig(
    family="llama",
    vocab_size=50_000,
    hidden_size=512,
    num_layers=8,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=1024,
    rms_norm_eps=1e-5,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    rope=RopeConfig(theta=10_000.0),
    sliding_windows=(None,) * 8,
)
BLOCK_BYTES = 2 * 8 * 16 * 128 * 4


def plan(available: float = 16 * GIB, **settings: object) -> MemoryPlan:
    return plan_memory(
        CONFIG,
        EngineSettings(**settings).booted(),
        weight_bytes=GIB,
        block_bytes=BLOCK_BYTES,
        available_bytes=int(available),
    )


def test_the_cache_takes_what_is_left_but_at_most_four_gib() -> None:
    assert plan().kv_cache_bytes <= CPU_KV_LIMIT_BYTES < plan().kv_cache_bytes + BLOCK_BYTES
    small = plan(3 * GIB, max_num_batched_tokens=256)
    used = small.weight_bytes + small.activation_bytes + small.logits_bytes + small.kv_cache_bytes
    assert 0 <= 0.92 * 3 * GIB - used < BLOCK_BYTES


def test_a_larger_boot_budget_leaves_less_for_the_cache() -> None:
    few = plan(2 * GIB, max_num_batched_tokens=256)
    many = plan(2 * GIB, max_num_batched_tokens=256, boot_max_num_batched_tokens=4096)
    assert many.num_blocks < few.num_blocks


def test_what_drafts_take_is_not_there_for_the_cache() -> None:
    without = plan(2 * GIB, max_num_batched_tokens=256)
    drafting = plan_memory(
        CONFIG,
        EngineSettings(max_num_batched_tokens=256).booted(),
        weight_bytes=GIB,
        block_bytes=BLOCK_BYTES,
        available_bytes=2 * GIB,
        draft_bytes=100 * BLOCK_BYTES,
    )
    assert drafting.num_blocks == without.num_blocks - 100
    assert drafting.by_use() == {
        **without.by_use(),
        "drafts": 100 * BLOCK_BYTES,
        "kv_cache": without.kv_cache_bytes - 100 * BLOCK_BYTES,
    }


def test_no_more_blocks_than_the_running_requests_can_fill() -> None:
    assert plan(boot_max_num_seqs=2, max_num_seqs=2).num_blocks == 2 * 512 + 1


def test_the_longest_request_is_capped_to_the_blocks() -> None:
    assert plan().max_model_len == 8192
    assert plan(num_kv_blocks=10).max_model_len == 144


@pytest.mark.parametrize(
    ("available", "settings", "reason", "named"),
    [
        (GIB, {}, "OutOfMemory", "1.00 GiB for weights"),
        (16 * GIB, {"num_kv_blocks": 1_000_000}, "OutOfMemory", "numKvBlocks"),
        (16 * GIB, {"num_kv_blocks": 10, "max_model_len": 145}, "KVCacheTooSmall", "144"),
        (16 * GIB, {"max_model_len": 9000}, "InvalidSettings", "8192"),
    ],
)
def test_what_cannot_fit_is_refused(
    available: int, settings: dict[str, object], reason: str, named: str
) -> None:
    with pytest.raises(StartFailed, match=named) as failed:
        plan(available, **settings)
    assert failed.value.reason == reason


def host(root: Path, files: dict[str, str]) -> Path:
    files = {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable:  8000 kB\n", **files}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_available_memory_is_the_machines_or_the_control_groups(tmp_path: Path) -> None:
    assert available_bytes(host(tmp_path / "none", {})) == 8000 * 1024
    limited = {
        "sys/fs/cgroup/memory.max": "5000000\n",
        "sys/fs/cgroup/memory.current": "3000000\n",
        "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 1000000\n",
    }
    assert available_bytes(host(tmp_path / "v2", limited)) == 3_000_000
    unlimited = {**limited, "sys/fs/cgroup/memory.max": "max\n"}
    assert available_bytes(host(tmp_path / "max", unlimited)) == 8000 * 1024
    old = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000000\n",
        "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 500000\n",
    }
    assert available_bytes(host(tmp_path / "v1", old)) == 3_500_000


def host_tier(memory: str | None, available: int = 4 * GIB) -> int:
    settings = EngineSettings(kv_offload_host_memory=memory)
    return plan_host_tier(settings, block_bytes=BLOCK_BYTES, available_bytes=available)


def test_the_host_tier_is_whole_blocks() -> None:
    assert host_tier(None) == host_tier("0") == 0
    assert host_tier("1Gi") == GIB - GIB % BLOCK_BYTES
    assert host_tier(str(3 * BLOCK_BYTES + 5)) == 3 * BLOCK_BYTES


def test_a_host_tier_that_the_host_has_no_room_for_is_refused() -> None:
    with pytest.raises(StartFailed, match=r"kvOffloadHostMemory is 5.00 GiB.*has 4.00 GiB") as told:
        host_tier("5Gi")
    assert told.value.reason == "OutOfMemory"


def test_a_host_tier_of_less_than_a_block_is_refused() -> None:
    with pytest.raises(StartFailed, match="must hold a KV block") as told:
        host_tier("100k")
    assert told.value.reason == "InvalidSettings"

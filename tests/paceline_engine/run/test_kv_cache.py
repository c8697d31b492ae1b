"""The cache has the kernels' own layout, and takes memory only where it is written."""

from pathlib import Path

import pytest
import torch

from paceline_engine.model.families import load_config
from paceline_engine.run.kv_cache import allocate_kv_cache, block_bytes
from paceline_engine.testing.tiny_model import TinyModel
from paceline_kernels import ops


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


@pytest.mark.parametrize("impl", ["torch", "cpu"])
def test_a_large_cache_holds_no_memory_before_it_is_written(tmp_path: Path, impl: str) -> None:
    config = load_config(TinyModel().write(tmp_path))
    num_blocks = (256 << 20) // block_bytes(config, 16, torch.float32)
    ops.new_kv_cache(2, 16, config.num_kv_heads, config.head_dim, torch.float32, impl=impl)
    before = resident_bytes()
    caches = allocate_kv_cache(config, num_blocks, 16, torch.float32, impl)
    assert resident_bytes() - before < 32 << 20
    assert len(caches) == config.num_layers
    small = ops.new_kv_cache(2, 16, config.num_kv_heads, config.head_dim, torch.float32, impl=impl)
    for cache, few in zip(caches[0][:2], small, strict=True):
        assert cache.shape == (num_blocks, 16, config.num_kv_heads, config.head_dim)
        assert cache.stride() == few.stride()
        assert not cache[num_blocks - 1].any()

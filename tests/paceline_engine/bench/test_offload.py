"""The comparison shows what it is for: nothing is computed again, and the tokens are the same."""

import itertools
from pathlib import Path

import pytest

from paceline_engine.bench import offload
from paceline_engine.testing.tiny_model import write_tiny_model


@pytest.mark.slow
def test_with_a_host_tier_the_blocks_come_back_and_without_they_are_computed(
    tmp_path: Path,
) -> None:
    seconds = itertools.count()  # computing seems slow, so copies pay on any machine
    found = offload.measure(
        write_tiny_model(tmp_path),
        num_blocks=10,
        host_memory="1Mi",
        clock=lambda: float(next(seconds)),
    )
    plain, loaded = found["recompute"], found["offload"]
    assert plain["tokens"] == loaded["tokens"]
    assert plain["preemptions"] == loaded["preemptions"] == 1
    assert plain["recomputed_tokens"] > 5 * offload.BLOCK_SIZE
    assert loaded["recomputed_tokens"] <= offload.BLOCK_SIZE
    assert loaded["loaded_tokens"] >= 5 * offload.BLOCK_SIZE
    assert plain["loaded_bytes"] == plain["stored_bytes"] == 0
    assert loaded["stored_bytes"] >= loaded["loaded_bytes"] > 0
    assert loaded["load_ms"] > 0
    assert plain["return_ms"] > 0

"""What the prefix cache's keys start from: everything a cached block depends on but its tokens."""

import dataclasses
import os
from pathlib import Path

import pytest
import torch

from paceline_crds.settings import DType
from paceline_engine.model.families import load_config
from paceline_engine.model.kv_scales import KvScales
from paceline_engine.run.kernels import KernelChoice
from paceline_engine.run.load import _cache_root
from paceline_engine.testing.tiny_model import TinyModel, write_tiny_model

FLOAT32 = KernelChoice(
    dtype=DType.FLOAT32,
    linear="torch",
    linear_dtype=torch.float32,
    ops="torch",
    sampler="torch",
    kv_dtype=torch.float32,
    full_kv_dtype=torch.float32,
    reason="for a test",
)

NO_SCALES: KvScales = ()


def root(folder: Path, **choice: torch.dtype) -> bytes:
    return _cache_root(
        folder, load_config(folder), dataclasses.replace(FLOAT32, **choice), NO_SCALES
    )


def test_the_same_model_in_the_same_formats_has_the_same_root(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    assert root(folder) == root(folder)


@pytest.mark.parametrize("field", ["linear_dtype", "kv_dtype"])
def test_the_dtype_and_the_kv_dtype_are_in_the_root(tmp_path: Path, field: str) -> None:
    folder = write_tiny_model(tmp_path)
    assert root(folder) != root(folder, **{field: torch.bfloat16})


def test_each_model_has_its_own_root(tmp_path: Path) -> None:
    folders = [write_tiny_model(tmp_path / name) for name in ("a", "b")]
    for folder in folders:  # not told apart by their times
        for path in folder.glob("*.safetensors"):
            os.utime(path, ns=(0, 0))
    assert root(folders[0]) != root(folders[1]), "the weights may differ"


def test_another_revision_in_the_same_folder_has_another_root(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, seed=0)
    before = root(folder)
    (weights,) = folder.glob("*.safetensors")
    status = weights.stat()
    write_tiny_model(folder, seed=1)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert weights.stat().st_size == status.st_size
    assert root(folder) != before


def test_another_configuration_of_the_same_weights_has_another_root(tmp_path: Path) -> None:
    folder = TinyModel(seed=0).write(tmp_path)
    config = load_config(folder)
    other = dataclasses.replace(config, rms_norm_eps=2 * config.rms_norm_eps)
    assert _cache_root(folder, config, FLOAT32, NO_SCALES) != _cache_root(
        folder, other, FLOAT32, NO_SCALES
    )


def test_the_scales_of_an_fp8_cache_are_in_the_root(tmp_path: Path) -> None:
    folder = TinyModel(seed=0).write(tmp_path)
    config = load_config(folder)
    one, two = torch.ones(2), torch.tensor([1.0, 2.0])
    assert _cache_root(folder, config, FLOAT32, ((one, one),)) != _cache_root(
        folder, config, FLOAT32, ((one, two),)
    )

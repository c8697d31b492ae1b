"""The choice of kernels follows the setting, the machine and what was measured."""

import dataclasses
from pathlib import Path

import pytest
import torch

from paceline_crds.settings import DType, KvCacheDType
from paceline_engine.model.families import load_config
from paceline_engine.run.device import CudaDevice
from paceline_engine.run.kernels import bf16_wins, choose_device_kernels, choose_kernels
from paceline_engine.testing.fake_device import FakeDevice
from paceline_engine.testing.tiny_model import TinyModel
from paceline_kernels import ops
from paceline_kernels.cpu.build import has_bf16_units
from paceline_kernels.kernel_table import Measured


def measured(tokens: int, own_us: float, bf16_us: float) -> list[Measured]:
    times = {"cpu/float32": own_us, "torch/float32": 1.0, "torch/bfloat16": bf16_us}
    return [
        Measured(out_features=8, in_features=8, tokens=tokens, microseconds=times) for _ in range(2)
    ]


def test_bfloat16_products_must_win_at_every_batch_size() -> None:
    assert bf16_wins([*measured(1, 200, 100), *measured(256, 2000, 300)])
    assert not bf16_wins([*measured(1, 100, 100), *measured(256, 2000, 300)])
    assert not bf16_wins(measured(1, 200, 160))


@pytest.mark.parametrize("dtype", [DType.AUTO, DType.FLOAT32, DType.BFLOAT16])
def test_the_setting_decides_what_is_rounded(tmp_path: Path, dtype: DType) -> None:
    if has_bf16_units() and dtype != DType.FLOAT32:
        pytest.skip("needs a CPU without bfloat16 units: here a measurement decides")
    choice = choose_kernels(load_config(TinyModel().write(tmp_path)), dtype)
    own = "torch" if ops.cpu_unavailable_reason() else "cpu"
    assert (choice.linear, choice.ops, choice.sampler) == (own, own, own)
    assert choice.linear_dtype == torch.float32
    is_rounded = dtype == DType.BFLOAT16
    assert choice.kv_dtype == (torch.bfloat16 if is_rounded else torch.float32)
    assert choice.dtype == (DType.BFLOAT16 if is_rounded else DType.FLOAT32)
    assert choice.described()["reason"]


def test_a_device_samples_by_the_implementation_that_attends_on_it() -> None:
    choice = choose_device_kernels(DType.AUTO, KvCacheDType.AUTO, FakeDevice())
    assert (choice.linear, choice.ops, choice.sampler) == ("torch", "torch", "torch")
    assert CudaDevice.ops_impl == "triton"
    device = FakeDevice()
    device.ops_impl = "triton"
    choice = choose_device_kernels(DType.AUTO, KvCacheDType.AUTO, device)
    assert (choice.linear, choice.ops, choice.sampler) == ("torch", "triton", "triton")


def test_a_model_that_our_kernels_cannot_take_is_told_aloud(tmp_path: Path) -> None:
    config = load_config(TinyModel().write(tmp_path))
    odd = choose_kernels(dataclasses.replace(config, head_dim=12), DType.FLOAT32)
    assert odd.ops == "torch"
    assert odd.fallback is not None
    if ops.cpu_unavailable_reason() is None:
        assert odd.fallback == "head_dim 12 is no multiple of 8"
        assert choose_kernels(config, DType.FLOAT32).fallback is None


def test_units_are_read_from_the_flags(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    assert not has_bf16_units(cpuinfo)
    cpuinfo.write_text("flags\t: fpu avx2 avx512_bf16 sse\n")
    assert has_bf16_units(cpuinfo)
    cpuinfo.write_text("flags\t: fpu avx2 xavx512_bf16\n")
    assert not has_bf16_units(cpuinfo)

"""Which implementation of the kernels this process uses, in which number formats, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline_crds.settings import DType, KvCacheDType
from paceline_engine.core.errors import StartFailed
from paceline_engine.model.config import ModelConfig
from paceline_engine.run.device import Device
from paceline_kernels import ops
from paceline_kernels.cpu import build
from paceline_kernels.kernel_table import Measured, kernel_table
from paceline_kernels.paged_kv import FP8

_FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

COMPOSED_LAYER_US = 100.0
"""What a layer of single calls costs more than our whole forward: seven of them, 15 us each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    """What computes.

    Attributes:
        dtype: what the setting became; never Auto.
        linear: implementation of the products, and `linear_dtype` the format of their inputs.
        ops: implementation of attention and all else; the KV cache lies in its order.
        sampler: implementation of sampling; the tokens are the same with each.
        kv_dtype: number format of the KV cache.
        full_kv_dtype: what it would be without FP8.
        reason: why this and nothing else.
        fallback: why our own C++ kernels cannot be used on this CPU, None if they can: a slower
            server, which its log should say aloud.
    """

    dtype: DType
    linear: str
    linear_dtype: torch.dtype
    ops: str
    sampler: str
    kv_dtype: torch.dtype
    full_kv_dtype: torch.dtype
    reason: str
    fallback: str | None = None

    def described(self) -> dict[str, str]:
        """For logs and the admin API."""
        return {
            "linear": f"{self.linear}/{_name(self.linear_dtype)}",
            "attention": self.ops,
            "sampler": self.sampler,
            "kv_cache": _name(self.kv_dtype),
            "reason": self.reason,
        }


def choose_kernels(
    config: ModelConfig, dtype: DType, kv_cache_dtype: KvCacheDType = KvCacheDType.AUTO
) -> KernelChoice:
    """Own C++ kernels where they can run; torch's bfloat16 products where they measure faster.

    Float32 keeps activations and KV cache float32. BFloat16 rounds the KV cache, and the inputs of
    products only where the CPU has bfloat16 units and that measures faster. Auto is Float32 unless
    bfloat16 products win: bfloat16 KV alone saved 5% of a step of 16 rows x 300 tokens, not worth
    that greedy tokens part from float32's. FP8 KV is taken when it is asked for.

    Beside our own kernels torch gets one thread: what is left to it is small, and its OpenMP
    threads would spin at barriers on the cores that our pool works on.
    """
    unavailable = ops.cpu_unavailable_reason()
    sampler = "torch" if unavailable else "cpu"
    if unavailable is None and config.head_dim % 8:
        unavailable = f"head_dim {config.head_dim} is no multiple of 8"
    own = "torch" if unavailable else "cpu"
    linear, linear_dtype = own, torch.float32
    if dtype == DType.FLOAT32:
        reason = "dtype is Float32"
    elif not build.has_bf16_units():
        reason = "this CPU has no bfloat16 units, where 16-bit weights in float32 registers win"
    else:
        table = kernel_table(
            _shapes(config),
            weight_dtype=_FORMATS[config.checkpoint_dtype],
            dtypes=(torch.float32, torch.bfloat16),
        )
        reason = table.reason
        if own != "cpu" or bf16_wins(table.rows):
            linear, linear_dtype = "torch", torch.bfloat16
    if linear == "cpu":
        torch.set_num_threads(1)
    is_rounded = dtype == DType.BFLOAT16 or linear_dtype == torch.bfloat16
    full_kv_dtype = torch.bfloat16 if is_rounded else torch.float32
    return KernelChoice(
        dtype=DType.BFLOAT16 if is_rounded else DType.FLOAT32,
        linear=linear,
        linear_dtype=linear_dtype,
        ops=own,
        sampler=sampler,
        kv_dtype=FP8 if kv_cache_dtype == KvCacheDType.FP8 else full_kv_dtype,
        full_kv_dtype=full_kv_dtype,
        reason=f"{reason}; own kernels: {unavailable}" if unavailable else reason,
        fallback=unavailable,
    )


def choose_device_kernels(
    dtype: DType, kv_cache_dtype: KvCacheDType, device: Device
) -> KernelChoice:
    """On an accelerator: the device's own operations and sampling, torch's products.

    Auto is BFloat16.

    Raises:
        StartFailed: InvalidSettings: FP8 KV on a device that cannot hold it.
    """
    if kv_cache_dtype == KvCacheDType.FP8 and device.fp8_refusal is not None:
        raise StartFailed(
            "InvalidSettings",
            f"kvCacheDtype FP8 cannot be served here: {device.fp8_refusal}; set it to Auto",
        )
    chosen = DType.BFLOAT16 if dtype == DType.AUTO else dtype
    number_format = torch.float32 if chosen == DType.FLOAT32 else torch.bfloat16
    return KernelChoice(
        dtype=chosen,
        linear="torch",
        linear_dtype=number_format,
        ops=device.ops_impl,
        sampler=device.ops_impl,
        kv_dtype=FP8 if kv_cache_dtype == KvCacheDType.FP8 else number_format,
        full_kv_dtype=number_format,
        reason=f"device {device.torch_device}",
    )


def bf16_wins(rows: Sequence[Measured]) -> bool:
    """Whether a layer of torch's bfloat16 products is faster at every batch size, calls included.

    At every one, not on average: a large gain of prefills would hide that single streams lose.
    """
    own: dict[int, float] = {}
    other: dict[int, float] = {}
    for row in rows:
        times = row.microseconds
        own[row.tokens] = own.get(row.tokens, 0.0) + times["cpu/float32"]
        other[row.tokens] = other.get(row.tokens, 0.0) + times["torch/bfloat16"]
    return all(other[tokens] + COMPOSED_LAYER_US < own[tokens] for tokens in own)


def _shapes(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """(out, in) of the products."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    return (
        (config.q_size + 2 * config.kv_size, hidden),
        (hidden, config.q_size),
        (2 * ffn, hidden),
        (hidden, ffn),
        (config.vocab_size, hidden),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

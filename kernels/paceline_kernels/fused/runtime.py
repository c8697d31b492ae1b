"""Where Triton can run, and one kernel call as a value.

A `Launch` holds everything that the compiled kernel depends on, so that what runs on a device, what
the interpreter runs and what is compiled ahead of time are the same thing.
"""

import importlib.util
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from paceline_kernels.errors import DTypeError, ImplUnavailableError

Config = TypeVar("Config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One call of one kernel.

    Attributes:
        kernel: what `triton.jit` made.
        grid: number of programs in each direction.
        arguments: by parameter's name, what is only known when running; None: a pointer not used.
        constants: by parameter's name, what is compiled in.
        num_warps, num_stages: of the compiled kernel; neither changes the result.
    """

    kernel: Any
    grid: tuple[int, int, int]
    arguments: dict[str, Tensor | int | float | None]
    constants: dict[str, object]
    num_warps: int
    num_stages: int


def is_interpreting() -> bool:
    """Whether kernels run on CPU tensors under Triton's interpreter (TRITON_INTERPRET=1)."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def unavailable_reason() -> str | None:
    """Why impl "triton" cannot run here, or None."""
    if importlib.util.find_spec("triton") is None:
        return "impl 'triton' needs the package triton, which is not installed"
    if is_interpreting() or torch.cuda.is_available():
        return None
    return (
        "impl 'triton' needs a CUDA or ROCm device, and torch sees none; name impl 'torch' or "
        "'cpu', or start Python with TRITON_INTERPRET=1 to run it slowly on the CPU"
    )


def require() -> None:
    """Refuse where Triton cannot run.

    Raises:
        ImplUnavailableError: says why and what can.
    """
    reason = unavailable_reason()
    if reason is not None:
        raise ImplUnavailableError(reason)


def expect_on_device(name: str, tensor: Tensor) -> None:
    """Refuse a tensor in memory that the kernels cannot reach.

    Raises:
        DTypeError: names the tensor and its device.
    """
    wanted = "cpu" if is_interpreting() else "cuda"
    if tensor.device.type != wanted:
        raise DTypeError(
            f"{name} must be on a {wanted} device for impl 'triton'"
            f"{' under the interpreter' if wanted == 'cpu' else ''}, got {tensor.device}"
        )


def is_fp8_native(device: torch.device) -> bool:
    """Whether the device converts e4m3 (the variant with 448) itself.

    The interpreter could, but tests the way that has no such device.
    """
    if is_interpreting() or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


def float32_precision() -> str:
    """How products of float32 are made: by its matrix units in IEEE arithmetic where it has such.

    NVIDIA's have TF32: three of its products give 22 bits of each factor. Its IEEE products run on
    the vector units, and spill hundreds of registers.
    """
    return "ieee" if is_interpreting() or torch.version.hip is not None else "tf32x3"


def num_processors(device: torch.device) -> int:
    """Multiprocessors of the device; the interpreter has one."""
    if is_interpreting():
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def run(launch: Launch) -> None:
    """Start the kernel on the current stream; an empty grid starts nothing."""
    if 0 in launch.grid:
        return
    launch.kernel[launch.grid](
        **launch.arguments,
        **launch.constants,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        enable_fp_fusion=True,  # the default of some versions of Triton, asked for by none
    )


_chosen: dict[Hashable, object] = {}


def pick(
    configs: Sequence[Config],
    key: Hashable,
    launch_of: Callable[[Config], Launch],
    *,
    time_of: Callable[[Callable[[], None]], float] | None = None,
) -> Config:
    """The fastest of the written-down configurations for this key, measured once per process.

    Only a device measures: the interpreter, and a stream that is being captured into a graph, take
    the first one (which is what is compiled ahead of time). Kernels overwrite their outputs alone,
    so that running one many times on a step's own tensors is harmless.

    Args:
        configs: candidates, the first is the default.
        key: what the choice depends on.
        launch_of: the call under a configuration.
        time_of: seconds of a call, for tests; None: Triton's own benchmark.
    """
    if len(configs) == 1:
        return configs[0]
    if time_of is None:
        if is_interpreting() or torch.cuda.is_current_stream_capturing():
            return _chosen.get(key, configs[0])  # type: ignore[return-value]
        from triton import testing

        time_of = testing.do_bench
    if key not in _chosen:
        _chosen[key] = min(configs, key=lambda config: time_of(lambda: run(launch_of(config))))
    return _chosen[key]  # type: ignore[return-value]

"""What the runner needs of an accelerator: its memory, and graphs of captured work.

`CudaDevice` is the one that is built; `paceline_engine.testing.fake_device` plays one on the CPU,
so that everything above this page runs in tests. A CPU host is no such device: it captures nothing
and its memory is planned from sizes (memory_plan).
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch

FP8_CAPABILITY = (8, 0)
"""From here on Triton's kernels read and write e4m3, by hand before 8.9."""


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Do it again, on the same memory."""
        ...


class Device(Protocol):
    """An accelerator."""

    @property
    def torch_device(self) -> torch.device:
        """Where tensors are put."""
        ...

    @property
    def ops_impl(self) -> str:
        """Implementation of attention, sampling and all but the products."""
        ...

    @property
    def fp8_refusal(self) -> str | None:
        """Why it cannot hold an FP8 KV cache, or None."""
        ...

    def total_bytes(self) -> int:
        """All of its memory."""
        ...

    def free_bytes(self) -> int:
        """Memory that nobody holds now, memory that torch keeps for reuse given back first."""
        ...

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """Most that tensors took while `run` ran, above what they take before it."""
        ...

    def capture(self, run: Callable[[], None]) -> Graph:
        """Run once to warm up, then capture; `run` reads and writes the same memory each time."""
        ...


class CudaDevice:
    """The current CUDA device; its graphs share one pool of memory."""

    ops_impl = "triton"

    def __init__(self) -> None:
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self._pool: Any = None  # torch's own handle

    @property
    def fp8_refusal(self) -> str | None:
        """As in `Device`."""
        capability = torch.cuda.get_device_capability(self.torch_device)
        if capability >= FP8_CAPABILITY:
            return None
        name = torch.cuda.get_device_name(self.torch_device)
        wanted, got = (".".join(map(str, pair)) for pair in (FP8_CAPABILITY, capability))
        return f"it needs compute capability {wanted}, and {name} has {got}"

    def total_bytes(self) -> int:
        """As in `Device`."""
        return int(torch.cuda.mem_get_info(self.torch_device)[1])

    def free_bytes(self) -> int:
        """As in `Device`."""
        torch.cuda.synchronize(self.torch_device)
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.torch_device)[0])

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """As in `Device`."""
        torch.cuda.synchronize(self.torch_device)
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        before = torch.cuda.memory_allocated(self.torch_device)
        run()
        torch.cuda.synchronize(self.torch_device)
        return int(torch.cuda.max_memory_allocated(self.torch_device)) - before

    def capture(self, run: Callable[[], None]) -> Graph:
        """As in `Device`."""
        side = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.torch_device))
        with torch.cuda.stream(side):
            run()  # kernels are compiled and libraries take their workspaces here
        torch.cuda.current_stream(self.torch_device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        self._pool = self._pool or graph.pool()
        replayed: Graph = graph
        return replayed


def find_device() -> Device | None:
    """The CUDA device of this process, or None on a host without one."""
    return CudaDevice() if torch.cuda.is_available() else None

"""A device on the CPU: graphs are called again, memory is what the test says."""

from collections.abc import Callable

import torch


class FakeGraph:
    """What was captured: replaying calls it again, over the same tensors."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run

    def replay(self) -> None:
        """Call it."""
        self._run()


class FakeDevice:
    """A `Device` of the CPU's tensors and of torch's kernels.

    Attributes:
        num_captures: so far.
    """

    ops_impl = "torch"

    def __init__(
        self,
        *,
        total_bytes: int = 1 << 30,
        others_bytes: int = 0,
        activation_bytes: int = 1 << 20,
        graph_bytes: int = 1 << 16,
        fp8_refusal: str | None = None,
    ) -> None:
        self.torch_device = torch.device("cpu")
        self.fp8_refusal = fp8_refusal
        self.num_captures = 0
        self._total = total_bytes
        self._free = total_bytes - others_bytes
        self._activation = activation_bytes
        self._graph = graph_bytes

    def total_bytes(self) -> int:
        """As the test says."""
        return self._total

    def free_bytes(self) -> int:
        """Falls with each capture."""
        return self._free

    def take(self, num_bytes: int) -> None:
        """Something was put into the device's memory."""
        self._free -= num_bytes

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """Run it for real; its memory is what the test says."""
        run()
        return self._activation

    def capture(self, run: Callable[[], None]) -> FakeGraph:
        """Run once, as a device does to warm up."""
        run()
        self.num_captures += 1
        self._free -= self._graph
        return FakeGraph(run)

"""One torch thread: with more, OpenMP's barriers spin on cores that other processes need.

Triton's kernels run under its interpreter, which must be asked for before triton is imported.
"""

import pytest
import torch

from paceline_kernels.testing.interpreter import ask_for_interpreter

ask_for_interpreter()


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> None:
    torch.set_num_threads(1)

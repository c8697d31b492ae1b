"""One torch thread: with more, OpenMP's barriers spin on cores that other processes need."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> None:
    torch.set_num_threads(1)

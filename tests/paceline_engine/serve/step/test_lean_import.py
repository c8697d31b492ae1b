"""Torch computes without its meta registrations, and still has them for who asks."""

import subprocess
import sys

import pytest

from paceline_engine.serve.step.lean_import import lean_torch

_PROGRAM = """
import sys
from paceline_engine.serve.step.lean_import import lean_torch
with lean_torch():
    import torch
assert "torch._meta_registrations" not in sys.modules
assert not hasattr(torch, "_meta_registrations")
x = torch.randn(4, 8)
assert (x @ x.T).softmax(-1).sum(-1).allclose(torch.ones(4))
import torch._meta_registrations
assert hasattr(torch._meta_registrations, "meta_index_Tensor")
meta = torch.empty(4, 8, device="meta")
assert (meta @ meta.T).shape == (4, 4)
print("fine")
"""


@pytest.mark.slow
def test_what_was_put_off_is_whole_when_it_is_imported_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout.strip() == "fine", done.stderr


@pytest.mark.slow
def test_a_process_that_has_torch_keeps_it_as_it_is() -> None:
    import torch

    before = torch._meta_registrations
    with lean_torch():
        assert sys.modules["torch._meta_registrations"] is before
    assert torch._meta_registrations is before

import os
import subprocess
import sys

import pytest

from paceline_kernels.errors import ImplUnavailableError
from paceline_kernels.implementations import IMPLS, module_of


def run(program: str, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_a_name_that_is_no_implementation_is_refused():
    with pytest.raises(ImplUnavailableError, match="reference, torch, cpu, triton, got 'fastest'"):
        module_of("fastest")


@pytest.mark.slow
def test_triton_is_imported_only_when_it_is_named_and_refused_where_it_cannot_run():
    program = """
import sys
import torch
from paceline_kernels import errors, ops
print("triton" in sys.modules)
torch.cuda.is_available = lambda: False  # also where there is one
try:
    ops.silu_and_mul(torch.zeros(2, 4), impl="triton")
except errors.ImplUnavailableError as error:
    print(error)
"""
    imported, message = run(program).splitlines()
    assert imported == "False"
    assert message == (
        "impl 'triton' needs a CUDA or ROCm device, and torch sees none; name impl 'torch' or "
        "'cpu', or start Python with TRITON_INTERPRET=1 to run it slowly on the CPU"
    )


@pytest.mark.slow
def test_the_interpreter_is_asked_for_by_its_variable():
    program = "from paceline_kernels import ops; print(ops.module_of('triton').__name__)"
    assert run(program, TRITON_INTERPRET="1") == "paceline_kernels.fused.path\n"
    assert IMPLS[-1] == "triton"

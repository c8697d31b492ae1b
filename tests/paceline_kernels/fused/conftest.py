"""The kernels under Triton's interpreter, which must be asked for before triton is imported."""

from paceline_kernels.testing.interpreter import ask_for_interpreter

ask_for_interpreter()

"""The implementations of the operations, by name; nothing falls back from one to another."""

from types import ModuleType

from paceline_kernels import reference, torch_path
from paceline_kernels.cpu import path as cpu_path
from paceline_kernels.errors import ImplUnavailableError

_MODULES: dict[str, ModuleType] = {"reference": reference, "torch": torch_path, "cpu": cpu_path}
IMPLS = (*_MODULES, "triton")


def module_of(impl: str) -> ModuleType:
    """The module that holds an implementation's functions.

    Raises:
        ImplUnavailableError: no such implementation, or Triton cannot run here.
    """
    if impl == "triton":
        return _triton()
    if impl not in _MODULES:
        raise ImplUnavailableError(f"impl must be one of {', '.join(IMPLS)}, got {impl!r}")
    return _MODULES[impl]


def _triton() -> ModuleType:
    """Triton's kernels, imported when they are first named: half a second that few need."""
    from paceline_kernels.fused import runtime

    runtime.require()
    from paceline_kernels.fused import path

    return path

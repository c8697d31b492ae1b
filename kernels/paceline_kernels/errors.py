"""Errors of the kernels: one root, one subclass for each reaction."""


class KernelError(Exception):
    """Root of everything the kernels raise on purpose."""


class ShapeError(KernelError, ValueError):
    """An argument has the wrong number of dimensions, sizes, strides or values."""


class DTypeError(KernelError, TypeError):
    """An argument has a number format or sits on a device that the operation does not take."""


class ImplUnavailableError(KernelError, RuntimeError):
    """The named implementation cannot run here; the message says why and what can."""

"""Checks of arguments: what, expected, got."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline_kernels.errors import DTypeError, ShapeError

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
FP8 = torch.float8_e4m3fn
KV_FORMATS = (*FLOATS, FP8)


def expect_shape(name: str, tensor: Tensor, sizes: Sequence[int | None], legend: str) -> None:
    """Refuse a tensor whose sizes differ; None stands for any size.

    Raises:
        ShapeError: names the tensor, the expected sizes with their legend, and the sizes it has.
    """
    shape = tensor.shape
    if len(shape) == len(sizes) and all(
        want is None or want == got for want, got in zip(sizes, shape, strict=True)
    ):
        return
    wanted = ", ".join("*" if size is None else str(size) for size in sizes)
    raise ShapeError(f"{name} must be [{legend}] = [{wanted}], got {list(shape)}")


def expect_dtype(name: str, tensor: Tensor, dtypes: Sequence[torch.dtype]) -> None:
    """Refuse a tensor of another number format.

    Raises:
        DTypeError: names the tensor, the formats taken, and the one it has.
    """
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        got = str(tensor.dtype).removeprefix("torch.")
        raise DTypeError(f"{name} must be {wanted}, got {got}")


def expect_same_device(first_name: str, first: Tensor, name: str, tensor: Tensor) -> None:
    """Refuse two tensors on different devices.

    Raises:
        DTypeError: names both tensors and their devices.
    """
    if tensor.device != first.device:
        raise DTypeError(
            f"{name} must be on the device of {first_name}, {first.device}, got {tensor.device}"
        )


def expect_rows_contiguous(name: str, tensor: Tensor) -> None:
    """Refuse a tensor that is not contiguous in memory.

    Raises:
        ShapeError: names the tensor and its strides.
    """
    if not tensor.is_contiguous():
        raise ShapeError(
            f"{name} must be contiguous, got sizes {list(tensor.shape)} with strides "
            f"{list(tensor.stride())}; call .contiguous() once where it is made"
        )


def expect_positive(name: str, value: float) -> None:
    """Refuse zero, negative values and NaN.

    Raises:
        ShapeError: names the argument and its value.
    """
    if not value > 0:
        raise ShapeError(f"{name} must be > 0, got {value}")


def expect_kv_scales(k_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None) -> None:
    """Refuse an FP8 cache without its scales, and scales for any other.

    Values are trusted to be positive: a look at them would wait for the device at every layer.

    Raises:
        ShapeError: a scale that is not one number for each KV head.
        DTypeError: scales missing, too many, or of another format or device.
    """
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if k_cache.dtype == FP8 and scale is None:
            raise DTypeError(f"{name} must be given for a float8_e4m3fn cache, got None")
        if k_cache.dtype != FP8 and scale is not None:
            got = str(k_cache.dtype).removeprefix("torch.")
            raise DTypeError(f"{name} must be None unless the cache is float8_e4m3fn, got {got}")
        if scale is not None:
            expect_shape(name, scale, (k_cache.shape[2],), "num_kv_heads")
            expect_dtype(name, scale, (torch.float32,))
            expect_rows_contiguous(name, scale)
            expect_same_device("k_cache", k_cache, name, scale)

"""RMSNorm with the residual's addition in one pass. Source: RMSNorm, arXiv:1910.07467."""

import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.fused.configs import power_of_two
from paceline_kernels.fused.numbers import narrow
from paceline_kernels.fused.runtime import Launch


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, total,
    eps,
    x_stride, residual_stride,
    HIDDEN: tl.constexpr, ALL: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Grid: rows. out and total: dense [rows, HIDDEN]; total is written if there is a residual."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, ALL)
    mask = columns < HIDDEN
    values = tl.load(x + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        added = tl.load(residual + row * residual_stride + columns, mask=mask, other=0.0)
        rounded = narrow(values + added.to(tl.float32), total.dtype.element_ty)
        tl.store(total + row * HIDDEN + columns, rounded, mask=mask)
        # The norm is that of the rounded sum, which the next layer reads.
        values = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(values * values, axis=0) / HIDDEN + eps)
    weights = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    result = narrow(values * scale * weights, out.dtype.element_ty)
    tl.store(out + row * HIDDEN + columns, result, mask=mask)


def rms_norm_launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor, total: Tensor
) -> Launch:
    """Describe the call: x, residual, out, total [rows, hidden]; without a residual no total."""
    rows, hidden = x.shape
    return Launch(
        kernel=rms_norm_kernel,
        grid=(rows, 1, 1),
        arguments={
            "x": x,
            "residual": residual,
            "weight": weight,
            "out": out,
            "total": None if residual is None else total,
            "eps": eps,
            "x_stride": x.stride(0),
            "residual_stride": 0 if residual is None else residual.stride(0),
        },
        constants={
            "HIDDEN": hidden,
            "ALL": power_of_two(hidden),
            "HAS_RESIDUAL": residual is not None,
        },
        # Some 8 to 16 values in each thread's registers.
        num_warps=min(16, max(1, power_of_two(hidden) // 512)),
        num_stages=1,
    )

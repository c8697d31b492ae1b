"""What touches every value once: silu(gate) * up, and rows of an embedding."""

import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.fused.numbers import narrow
from paceline_kernels.fused.runtime import Launch

BLOCK = 1024


@triton.jit
def silu_and_mul_kernel(x, out, x_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Grid: rows x blocks of columns. x: [rows, 2 * WIDTH], gate first; out: dense."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    gate = tl.load(x + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + WIDTH + columns, mask=mask, other=0.0).to(tl.float32)
    # exp of what is never positive: nothing overflows.
    decay = tl.exp(-tl.abs(gate))
    result = gate * (tl.where(gate < 0, decay, 1.0) / (1.0 + decay)) * up
    tl.store(out + row * WIDTH + columns, narrow(result, out.dtype.element_ty), mask=mask)


@triton.jit
def embedding_kernel(
    token_ids, weight, out, weight_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid: tokens x blocks of columns. weight: [vocab, WIDTH]; out: dense."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    row = tl.load(token_ids + token).to(tl.int64)
    values = tl.load(weight + row * weight_stride + columns, mask=mask, other=0.0)
    result = narrow(values.to(tl.float32), out.dtype.element_ty)
    tl.store(out + token * WIDTH + columns, result, mask=mask)


def silu_and_mul_launch(x: Tensor, out: Tensor) -> Launch:
    """Describe the call: x [rows, 2 * width] -> out [rows, width]."""
    rows, width = out.shape
    return Launch(
        kernel=silu_and_mul_kernel,
        grid=(rows, triton.cdiv(width, BLOCK), 1),
        arguments={"x": x, "out": out, "x_stride": x.stride(0)},
        constants={"WIDTH": width, "BLOCK": BLOCK},
        num_warps=4,
        num_stages=1,
    )


def embedding_launch(token_ids: Tensor, weight: Tensor, out: Tensor) -> Launch:
    """Describe the call: rows of weight for token_ids, in out's format."""
    tokens, width = out.shape
    return Launch(
        kernel=embedding_kernel,
        grid=(tokens, triton.cdiv(width, BLOCK), 1),
        arguments={
            "token_ids": token_ids,
            "weight": weight,
            "out": out,
            "weight_stride": weight.stride(0),
        },
        constants={"WIDTH": width, "BLOCK": BLOCK},
        num_warps=4,
        num_stages=1,
    )

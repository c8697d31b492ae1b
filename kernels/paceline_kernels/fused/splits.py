"""Adding up the parts of a split context. Source: Flash-Decoding's reduction."""

import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.fused.configs import power_of_two
from paceline_kernels.fused.numbers import narrow
from paceline_kernels.fused.runtime import Launch


@triton.jit
def add_splits_kernel(
    partial, partial_top, partial_total, out,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Grid: tokens * heads. See attention_kernel for the parts; out: [tokens * heads, HEAD_DIM]."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, DIM)
    splits = tl.arange(0, SPLITS)
    tops = tl.load(partial_top + row * SPLITS + splits)
    totals = tl.load(partial_total + row * SPLITS + splits)
    best = tl.max(tops, axis=0)
    base = tl.where(best == float("-inf"), 0.0, best)
    shares = tl.exp2(tops - base)
    total = tl.sum(shares * totals, axis=0)
    # A part that saw no key holds zeros: it is not read.
    mask = (tops > float("-inf"))[:, None] & (dims < HEAD_DIM)[None, :]
    parts = tl.load(
        partial + (row * SPLITS + splits)[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0
    )
    mixed = tl.sum(parts * shares[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * HEAD_DIM + dims, narrow(mixed, out.dtype.element_ty), mask=dims < HEAD_DIM)


def add_splits_launch(partial: Tensor, sums: tuple[Tensor, Tensor], out: Tensor) -> Launch:
    """Describe the call: partial [tokens, heads, splits, head_dim], sums (tops, totals)."""
    tokens, heads, num_splits, head_dim = partial.shape
    return Launch(
        kernel=add_splits_kernel,
        grid=(tokens * heads, 1, 1),
        arguments={
            "partial": partial,
            "partial_top": sums[0],
            "partial_total": sums[1],
            "out": out,
        },
        constants={"HEAD_DIM": head_dim, "DIM": power_of_two(head_dim), "SPLITS": num_splits},
        num_warps=4 if num_splits * head_dim >= 1024 else 1,
        num_stages=1,
    )

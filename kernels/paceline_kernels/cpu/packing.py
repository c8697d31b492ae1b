"""Weights packed for the C++ product (layout: src/gemm.h)."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_kernels.cpu import library
from paceline_kernels.errors import ShapeError

_ALIGN = 64
# Weights of this size and more are streamed: large pages are asked for.
_HUGE_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """A packed weight; `struct` points into `data` and `bias`, which must live as long."""

    struct: library.Weight
    data: Tensor
    bias: Tensor | None

    @property
    def num_bytes(self) -> int:
        """Memory that it holds."""
        return self.data.numel() + (0 if self.bias is None else self.bias.numel() * 4)


def pack(weight: Tensor, bias: Tensor | None, *, gated: bool = False) -> PackedWeight:
    """Pack [out, in]; 16-bit weights stay 16-bit, the products are exact in float32.

    Args:
        weight: [out, in], float32, bfloat16 or float16.
        bias: [out] or None.
        gated: the outputs are gate (first half) and up; the product can then give silu(gate) * up.

    Raises:
        ShapeError: gated with an odd number of outputs.
        DTypeError: unknown number format.
    """
    rt = library.runtime()
    number = library.format_of("weight", weight.dtype)
    weight = weight.contiguous()
    n, k = weight.shape
    if gated and n % 2:
        raise ShapeError(f"a gated weight must have an even number of outputs, got {n}")
    rows = _row_order(n, rt.panel, gated=gated)
    num_panels = rows.numel() // rt.panel
    size = rows.numel() * k * weight.element_size()
    raw = torch.empty(size + _ALIGN, dtype=torch.uint8)
    data = raw[-raw.data_ptr() % _ALIGN :][:size]
    if size >= _HUGE_BYTES:
        rt.lib.paceline_advise_huge(data.data_ptr(), size)
    rt.lib.paceline_pack(
        rt.context,
        data.data_ptr(),
        weight.data_ptr(),
        k,
        rows.data_ptr(),
        num_panels,
        number,
    )
    packed_bias = None
    if bias is not None:
        known = rows.clamp(min=0).long()
        packed_bias = torch.where(rows >= 0, bias.float()[known], 0.0).contiguous()
    struct = library.Weight(
        data=data.data_ptr(),
        bias=None if packed_bias is None else packed_bias.data_ptr(),
        n=n,
        k=k,
        format=number,
        gated=int(gated),
    )
    return PackedWeight(struct=struct, data=data, bias=packed_bias)


def _row_order(n: int, panel: int, *, gated: bool) -> Tensor:
    """[panels * panel] int32: the weight's row at each packed output, -1 where there is none."""
    if not gated:
        rows = torch.arange(-(-n // panel) * panel, dtype=torch.int32)
        return torch.where(rows < n, rows, -1).to(torch.int32)
    half, width = n // 2, panel // 2
    gates = torch.arange(-(-half // width) * width, dtype=torch.int32).reshape(-1, 1, width)
    both = torch.cat((gates, gates + half), dim=1)
    return torch.where(gates < half, both, -1).to(torch.int32).flatten().contiguous()


def linear(x: Tensor, packed: PackedWeight, *, out: Tensor, epilogue: int) -> None:
    """Write (STORE, SILU_MUL) or add (ADD) x times the weight into `out`.

    Args:
        x: [tokens, in] float32, contiguous.
        packed: the weight.
        out: [tokens, out] float32 with contiguous rows; SILU_MUL: [tokens, out / 2].
        epilogue: library.STORE, ADD or SILU_MUL.
    """
    rt = library.runtime()
    rt.lib.paceline_linear(
        rt.context,
        ctypes.byref(packed.struct),
        x.data_ptr(),
        out.data_ptr(),
        out.stride(0),
        x.shape[0],
        epilogue,
    )

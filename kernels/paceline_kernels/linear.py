"""Linear layers: weights prepared once for the implementation that will use them, and products.

Re-exported by ops. Implementations: "reference" keeps the weight as given, "torch" keeps it in the
activations' format, "cpu" packs it in its own format (16-bit weights stay 16-bit in memory and are
multiplied in float32 registers, which is exact) and takes float32 activations.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_kernels import checks, reference, torch_path
from paceline_kernels.cpu import library, packing
from paceline_kernels.errors import DTypeError, ImplUnavailableError, ShapeError

PRODUCTS = ("reference", "torch", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearWeight:
    """A weight [out, in] and its bias, in the layout of one implementation.

    Attributes:
        impl: the implementation that `linear` calls.
        dtype: number format of the activations that it takes and gives.
        is_gated: the outputs are gate (first half) and up, for `linear_silu_mul` alone.
        weight, bias: for "reference" and "torch".
        packed: for "cpu".
    """

    impl: str
    out_features: int
    in_features: int
    dtype: torch.dtype
    is_gated: bool
    weight: Tensor | None
    bias: Tensor | None
    packed: packing.PackedWeight | None


def prepare_linear(
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    impl: str = "torch",
    dtype: torch.dtype = torch.float32,
    is_gated: bool = False,
) -> LinearWeight:
    """Lay out a weight once for `linear`, `linear_add_` or `linear_silu_mul`.

    Args:
        weight: [out, in], any float format; "cpu" copies it, the original may go.
        bias: [out] or None.
        impl: name of the implementation.
        dtype: format of the activations; "cpu" takes float32.
        is_gated: the weight is cat(gate, up) and serves `linear_silu_mul` alone.

    Raises:
        ShapeError: sizes that do not fit.
        DTypeError: formats that the implementation does not take.
        ImplUnavailableError: no such implementation, or it cannot run here.
    """
    checks.expect_shape("weight", weight, (None, None), "out, in")
    checks.expect_dtype("weight", weight, checks.FLOATS)
    if bias is not None:
        checks.expect_shape("bias", bias, (weight.shape[0],), "out")
        checks.expect_dtype("bias", bias, checks.FLOATS)
    if is_gated and weight.shape[0] % 2:
        raise ShapeError(f"a gated weight must have an even number of outputs, got {weight.shape}")
    if impl not in PRODUCTS:
        raise ImplUnavailableError(f"impl must be one of {', '.join(PRODUCTS)}, got {impl!r}")
    packed = None
    kept: Tensor | None = weight
    kept_bias = bias
    if impl == "torch":
        kept = weight.to(dtype)
        kept_bias = None if bias is None else bias.to(dtype)
    elif impl == "cpu":
        if dtype != torch.float32:
            raise DTypeError(f"impl 'cpu' takes float32 activations, got dtype {dtype}")
        packed = packing.pack(weight, bias, gated=is_gated)
        kept, kept_bias = None, None
    return LinearWeight(
        impl=impl,
        out_features=weight.shape[0],
        in_features=weight.shape[1],
        dtype=dtype,
        is_gated=is_gated,
        weight=kept,
        bias=kept_bias,
        packed=packed,
    )


def linear(x: Tensor, weight: LinearWeight) -> Tensor:
    """Multiply x [tokens, in] by a prepared weight: [tokens, out] in the same format.

    Raises:
        ShapeError: x has other columns than the weight, or the weight is gated.
        DTypeError: x has another format than the weight was prepared for.
    """
    _check(x, weight, is_gated=False)
    if weight.packed is None:
        return _eager(x, weight)
    out = torch.empty(x.shape[0], weight.out_features)
    packing.linear(x, weight.packed, out=out, epilogue=library.STORE)
    return out


def linear_add_(residual: Tensor, x: Tensor, weight: LinearWeight) -> None:
    """Add linear(x, weight) to residual [tokens, out] in place; "cpu" does it in one pass.

    Raises:
        ShapeError: sizes that do not fit.
        DTypeError: formats that do not fit.
    """
    _check(x, weight, is_gated=False)
    checks.expect_shape("residual", residual, (x.shape[0], weight.out_features), "tokens, out")
    checks.expect_dtype("residual", residual, (weight.dtype,))
    if weight.packed is None:
        residual += _eager(x, weight)
        return
    checks.expect_rows_contiguous("residual", residual)
    packing.linear(x, weight.packed, out=residual, epilogue=library.ADD)


def linear_silu_mul(x: Tensor, weight: LinearWeight) -> Tensor:
    """Give silu(gate) * up of a gated weight: [tokens, in] -> [tokens, out / 2]; "cpu" in one pass.

    Raises:
        ShapeError: sizes that do not fit, or the weight is not gated.
        DTypeError: formats that do not fit.
    """
    _check(x, weight, is_gated=True)
    if weight.packed is None:
        both = _eager(x, weight)
        torchs = weight.impl == "torch"
        return torch_path.silu_and_mul(both) if torchs else reference.silu_and_mul(both)
    out = torch.empty(x.shape[0], weight.out_features // 2)
    packing.linear(x, weight.packed, out=out, epilogue=library.SILU_MUL)
    return out


def _eager(x: Tensor, weight: LinearWeight) -> Tensor:
    assert weight.weight is not None
    if weight.impl == "torch":
        return torch_path.linear(x, weight.weight, weight.bias)
    return reference.linear(x, weight.weight, weight.bias)


def _check(x: Tensor, weight: LinearWeight, *, is_gated: bool) -> None:
    checks.expect_shape("x", x, (None, weight.in_features), "tokens, in")
    checks.expect_dtype("x", x, (weight.dtype,))
    if weight.is_gated != is_gated:
        raise ShapeError(
            "a gated weight serves linear_silu_mul alone, and linear_silu_mul takes no other; "
            f"prepare_linear got is_gated={weight.is_gated}"
        )
    if weight.packed is not None:
        checks.expect_rows_contiguous("x", x)

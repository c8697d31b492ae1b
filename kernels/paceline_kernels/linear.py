"""Weights of a linear layer, prepared once for the implementation that will use them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_kernels import checks


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearWeight:
    """A weight [out, in] and its bias, in the layout of one implementation.

    Attributes:
        impl: the implementation that `ops.linear` calls.
        dtype: number format of the activations that it takes and gives.
        weight: "reference": as given; "torch": [out, in] in `dtype`.
        bias: [out], or None.
    """

    impl: str
    out_features: int
    in_features: int
    dtype: torch.dtype
    weight: Tensor
    bias: Tensor | None


def check_weight(weight: Tensor, bias: Tensor | None) -> None:
    """Refuse what is not a weight [out, in] of floats with a bias [out] or none."""
    checks.expect_shape("weight", weight, (None, None), "out, in")
    checks.expect_dtype("weight", weight, checks.FLOATS)
    if bias is not None:
        checks.expect_shape("bias", bias, (weight.shape[0],), "out")
        checks.expect_dtype("bias", bias, checks.FLOATS)


def prepare_torch(
    weight: Tensor, bias: Tensor | None, *, impl: str, dtype: torch.dtype
) -> LinearWeight:
    """Keep the weight as given for the reference, in the activations' format for torch."""
    kept = weight if impl == "reference" else weight.to(dtype)
    kept_bias = bias if bias is None or impl == "reference" else bias.to(dtype)
    return LinearWeight(
        impl=impl,
        out_features=weight.shape[0],
        in_features=weight.shape[1],
        dtype=dtype,
        weight=kept,
        bias=kept_bias,
    )

"""Verification of draft tokens: how many of each row hold.

Every position of a row is sampled as if it were decoded alone, with its own noise, so a draft holds
while it equals the token sampled in its place. For greedy rows that is the argmax; for random ones
the distribution is the model's own, because nothing but the model's scores and the noise of the
position chose the token. Nothing is drawn again.

Source: speculative sampling (arXiv:2302.01318) with the noise of the target shared by the draft.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from paceline_kernels import checks
from paceline_kernels.errors import ImplUnavailableError, ShapeError
from paceline_kernels.implementations import IMPLS, module_of


def verify_drafts(
    tokens: Tensor, drafts: Tensor, num_drafts: Tensor, *, impl: str = "torch"
) -> Tensor:
    """Count the leading drafts of each row that equal the tokens sampled in their places.

    Args:
        tokens: [drafts + rows] int64: for each row one token in the place of each draft, then the
            one behind the last.
        drafts: [drafts] int64, row by row.
        num_drafts: [rows] int64, may be 0.
        impl: name of the implementation; "cpu" is torch's own: some integers are not worth C++.
            "triton" looks at no value before the kernel does: num_drafts must sum up to drafts.

    Returns:
        [rows] int64, accepted drafts; a row yields one token more.

    Raises:
        ShapeError, DTypeError, ImplUnavailableError: as every operation.
    """
    if impl not in IMPLS:
        raise ImplUnavailableError(f"impl must be one of {', '.join(IMPLS)}, got {impl!r}")
    for name, tensor, legend in (
        ("tokens", tokens, "drafts + rows"),
        ("drafts", drafts, "drafts"),
        ("num_drafts", num_drafts, "rows"),
    ):
        checks.expect_shape(name, tensor, (None,), legend)
        checks.expect_dtype(name, tensor, (torch.int64,))
    checks.expect_shape("tokens", tokens, (len(drafts) + len(num_drafts),), "drafts + rows")
    if impl == "triton":
        module_of("triton")
        from paceline_kernels.fused import speculation as fused

        return fused.verify_drafts(tokens, drafts, num_drafts)
    if int(num_drafts.sum()) != len(drafts) or bool((num_drafts < 0).any()):
        raise ShapeError(
            f"num_drafts must be >= 0 and sum up to drafts {len(drafts)}, got {num_drafts.tolist()}"
        )
    return _IMPLS[impl](tokens, drafts, num_drafts)


def _reference(tokens: Tensor, drafts: Tensor, num_drafts: Tensor) -> Tensor:
    accepted = torch.zeros_like(num_drafts)
    at = 0
    for row, count in enumerate(num_drafts.tolist()):
        for number in range(count):
            if tokens[at + number + row] != drafts[at + number]:
                break
            accepted[row] += 1
        at += count
    return accepted


def _vectorised(tokens: Tensor, drafts: Tensor, num_drafts: Tensor) -> Tensor:
    rows = torch.arange(len(num_drafts), device=num_drafts.device)
    owner = rows.repeat_interleave(num_drafts, output_size=len(drafts))
    places = torch.arange(len(drafts), device=drafts.device) + owner
    wrong = (tokens[places] != drafts).long().cumsum(0)
    # Wrong ones so far in all rows, less those of the rows before.
    ends = num_drafts.cumsum(0)
    before = torch.nn.functional.pad(wrong, (1, 0))[ends - num_drafts]
    holds = wrong == before[owner]
    return torch.zeros_like(num_drafts).index_add_(0, owner, holds.long())


_IMPLS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "reference": _reference,
    "torch": _vectorised,
    "cpu": _vectorised,
}

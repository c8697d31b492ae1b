"""How many leading drafts of each row equal the tokens sampled in their places."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.fused import runtime
from paceline_kernels.fused.runtime import Launch

BLOCK = 32
"""Drafts looked at together: more than a row has, nearly always."""


@triton.jit
def accepted_kernel(tokens, drafts, ends, accepted, BLOCK: tl.constexpr):
    """Grid: rows. ends: [rows] int64, drafts of the rows up to and with each."""
    row = tl.program_id(0)
    first = tl.load(ends + row - 1, mask=row > 0, other=0)
    count = (tl.load(ends + row) - first).to(tl.int32)
    lanes = tl.arange(0, BLOCK)
    holds = count
    for start in range(0, count, BLOCK):
        number = start + lanes
        known = number < count
        draft = tl.load(drafts + first + number, mask=known, other=0)
        # Each row before has one token more than drafts.
        token = tl.load(tokens + first + row + number, mask=known, other=0)
        wrong = tl.where(known & (draft != token), number, count)
        holds = tl.minimum(holds, tl.min(wrong, axis=0))
    tl.store(accepted + row, holds.to(tl.int64))


def accepted_launch(tokens: Tensor, drafts: Tensor, ends: Tensor, accepted: Tensor) -> Launch:
    """Describe the call: tokens, drafts, ends, accepted as the kernel reads and writes them."""
    return Launch(
        kernel=accepted_kernel,
        grid=(len(ends), 1, 1),
        arguments={"tokens": tokens, "drafts": drafts, "ends": ends, "accepted": accepted},
        constants={"BLOCK": BLOCK},
        num_warps=1,
        num_stages=1,
    )


def verify_drafts(tokens: Tensor, drafts: Tensor, num_drafts: Tensor) -> Tensor:
    """See speculation.verify_drafts; shapes and formats were checked, values are not."""
    for name, tensor in (("tokens", tokens), ("drafts", drafts), ("num_drafts", num_drafts)):
        runtime.expect_on_device(name, tensor)
    accepted = torch.empty_like(num_drafts)
    ends = num_drafts.cumsum(0)
    runtime.run(accepted_launch(tokens.contiguous(), drafts.contiguous(), ends, accepted))
    return accepted

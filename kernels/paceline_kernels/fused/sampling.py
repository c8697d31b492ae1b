"""Sampling on Triton: scores stay on the device, what may win is decided on the host.

Arguments were checked by the caller (paceline_kernels.sampling).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline_kernels.fused import runtime
from paceline_kernels.fused.gumbel import ERROR_UNIT, GROUP, groups_for, noisy_best_launch
from paceline_kernels.fused.top_scores import TopBuffers, top_scores_launch

if TYPE_CHECKING:
    from paceline_kernels.sampling import Rows

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]

_MAX_TIES = 64


def candidates(scores: Tensor, rows: Rows, keys: Int64) -> tuple[Int64, Int64, Float32]:
    """Tokens that may win.

    Returns:
        (row [m] ascending, ids [m, GROUP] ascending, their undivided scores [m, GROUP], -inf where
        an id lies behind the vocabulary). Each row is named once or more.
    """
    runtime.expect_on_device("scores", scores)
    device, vocab = scores.device, scores.shape[1]
    places, temperatures, floors = _uploaded(rows, device)
    best = torch.empty(len(keys), groups_for(vocab), device=device)
    noise_keys = torch.from_numpy(np.ascontiguousarray(keys, dtype=np.int64)).to(device)
    runtime.run(noisy_best_launch(scores, places, temperatures, floors, noise_keys, best))
    winner = best.amax(dim=1, keepdim=True)
    # A row of nothing but -inf has them all in reach, as it must.
    reach = winner - (winner.abs() + 32.0) * (2 * ERROR_UNIT)
    row, group = (best >= reach).nonzero().unbind(1)
    ids = group.unsqueeze(1) * GROUP + torch.arange(GROUP, device=device)
    own = scores[places[row].unsqueeze(1), ids.clamp(max=vocab - 1)]
    own.masked_fill_(ids >= vocab, float("-inf"))
    return row.cpu().numpy(), ids.cpu().numpy(), own.cpu().numpy()


def top(
    scores: Tensor, rows: Rows, count: int, *, with_norm: bool
) -> tuple[Float32, Int64, Float32, Float32 | None] | None:
    """(values, ids, count-th best, norms), or None when ties are too many to list."""
    runtime.expect_on_device("scores", scores)
    vocab = scores.shape[1]
    buffers = TopBuffers(len(rows.places), min(vocab, count + _MAX_TIES), scores.device)
    runtime.run(
        top_scores_launch(
            scores, *_uploaded(rows, scores.device), count, buffers, with_mass=with_norm
        )
    )
    width = int(buffers.lengths.max()) if len(rows.places) else 0
    if width > buffers.values.shape[1]:
        return None
    width = max(1, width)
    # Lists are in the order of the ids, which a stable sort keeps among equals.
    values, order = buffers.values[:, :width].sort(dim=1, descending=True, stable=True)
    ids = buffers.ids[:, :width].gather(1, order)
    norm = None
    if with_norm:
        norm = (buffers.peaks.double() + buffers.masses.log()).float().cpu().numpy()
    return values.cpu().numpy(), ids.cpu().numpy(), buffers.last.cpu().numpy(), norm


def _uploaded(rows: Rows, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    places = np.ascontiguousarray(rows.places, dtype=np.int64)
    temperature = np.ascontiguousarray(rows.temperature, dtype=np.float32)
    floor = np.ascontiguousarray(rows.floor, dtype=np.float32)
    return (
        torch.from_numpy(places).to(device),
        torch.from_numpy(temperature).to(device),
        torch.from_numpy(floor).to(device),
    )

"""Sampling on our C++ kernels (src/sample.h). Arguments were checked by the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paceline_kernels.cpu import library

if TYPE_CHECKING:
    from paceline_kernels.sampling import Rows

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]

_MAX_DRAWN = 32  # sample.h: kMaxDrawn
_MAX_TIES = 64


def draw(scores: Tensor, rows: Rows, keys: Int64) -> tuple[Int32, Int32]:
    """Tokens that may win: ids [n, 32], and how many of them count, [n]; -1: too many."""
    places, temperature, floor = _arrays(rows)
    keys = np.ascontiguousarray(keys, dtype=np.int64)
    ids = np.zeros((len(places), _MAX_DRAWN), dtype=np.int32)
    counts = np.zeros(len(places), dtype=np.int32)
    rt = library.runtime()
    rt.lib.paceline_draw(
        rt.context,
        scores.data_ptr(),
        scores.stride(0),
        scores.shape[1],
        places.ctypes.data,
        temperature.ctypes.data,
        floor.ctypes.data,
        keys.ctypes.data,
        len(places),
        ids.ctypes.data,
        counts.ctypes.data,
    )
    return ids, counts


def top(
    scores: Tensor, rows: Rows, count: int, *, with_norm: bool
) -> tuple[Float32, Int64, Float32, Float32 | None] | None:
    """(values, ids, count-th best, norms), or None when ties are too many to list."""
    places, temperature, floor = _arrays(rows)
    capacity = count + _MAX_TIES
    values = np.full((len(places), capacity), -np.inf, dtype=np.float32)
    ids = np.zeros((len(places), capacity), dtype=np.int64)
    lengths = np.zeros(len(places), dtype=np.int32)
    last = np.zeros(len(places), dtype=np.float32)
    norms = np.zeros(len(places), dtype=np.float32) if with_norm else None
    rt = library.runtime()
    rt.lib.paceline_top(
        rt.context,
        scores.data_ptr(),
        scores.stride(0),
        scores.shape[1],
        places.ctypes.data,
        temperature.ctypes.data,
        floor.ctypes.data,
        len(places),
        count,
        capacity,
        values.ctypes.data,
        ids.ctypes.data,
        lengths.ctypes.data,
        last.ctypes.data,
        None if norms is None else norms.ctypes.data,
    )
    if (lengths < 0).any():
        return None
    width = max(1, int(lengths.max(initial=0)))
    return values[:, :width], ids[:, :width], last, norms


def _arrays(rows: Rows) -> tuple[Int64, Float32, Float32]:
    return (
        np.ascontiguousarray(rows.places, dtype=np.int64),
        np.ascontiguousarray(rows.temperature, dtype=np.float32),
        np.ascontiguousarray(rows.floor, dtype=np.float32),
    )

"""Memory for the KV cache: zero, and taken from the machine only where it is written."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_BITS: dict[int, type[np.unsignedinteger]] = {
    1: np.uint8,
    2: np.uint16,
    4: np.uint32,
    8: np.uint64,
}


def lazy_zeros(sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A contiguous zeroed tensor whose pages the machine gives at the first write.

    torch.zeros writes every page: seconds of the start for gigabytes, and memory that a server
    which is never full would hold for nothing. numpy asks the allocator for zeroed memory.
    """
    bits = np.zeros(tuple(sizes), dtype=_BITS[dtype.itemsize])
    return torch.from_numpy(bits).view(dtype)

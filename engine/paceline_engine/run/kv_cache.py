"""The paged KV cache of all layers."""

import numpy as np
import torch
from torch import Tensor

from paceline_engine.model.config import ModelConfig
from paceline_kernels import ops


def allocate_kv_cache(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, impl: str
) -> list[tuple[Tensor, Tensor]]:
    """Make (keys, values) of each layer: [num_blocks, block_size, num_kv_heads, head_dim].

    The memory is zero and mapped lazily: clearing gigabytes would cost seconds of the start, and
    a server that is never full would hold them for nothing.

    Args:
        config: of the model.
        num_blocks: the null block 0 included.
        block_size: tokens in a block.
        dtype: number format of the cache.
        impl: implementation whose memory order is used.
    """
    shape = (config.num_kv_heads, config.head_dim)
    few_k, few_v = ops.new_kv_cache(2, block_size, *shape, dtype, impl=impl)
    return [
        (_more_blocks(few_k, num_blocks), _more_blocks(few_v, num_blocks))
        for _ in range(config.num_layers)
    ]


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return 2 * config.num_layers * block_size * config.kv_size * dtype.itemsize


def _more_blocks(few: Tensor, num_blocks: int) -> Tensor:
    """Zeroed blocks in the memory order of `few`; a block is contiguous in every order."""
    count = num_blocks * few.stride(0)
    bits = {2: np.uint16, 4: np.uint32}[few.element_size()]
    memory = torch.from_numpy(np.zeros(count, dtype=bits)).view(few.dtype)
    return memory.as_strided((num_blocks, *few.shape[1:]), few.stride())

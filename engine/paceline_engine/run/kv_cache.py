"""The paged KV cache of all layers."""

import torch
from torch import Tensor

from paceline_engine.model.config import ModelConfig
from paceline_kernels import ops


def allocate_kv_cache(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, impl: str
) -> list[tuple[Tensor, Tensor]]:
    """Make (keys, values) of each layer: [num_blocks, block_size, num_kv_heads, head_dim].

    Args:
        config: of the model.
        num_blocks: the null block 0 included.
        block_size: tokens in a block.
        dtype: number format of the cache.
        impl: implementation whose memory order is used.
    """
    sizes = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
    return [ops.new_kv_cache(*sizes, dtype, impl=impl) for _ in range(config.num_layers)]


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return 2 * config.num_layers * block_size * config.kv_size * dtype.itemsize

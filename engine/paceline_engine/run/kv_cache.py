"""The paged KV cache of all layers."""

from collections.abc import Sequence

import torch

from paceline_engine.model.config import ModelConfig
from paceline_engine.model.kv_scales import KvScales
from paceline_kernels import ops
from paceline_kernels.paged_kv import LayerKv


def allocate_kv_cache(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    impl: str,
    scales: KvScales | None = None,
) -> list[LayerKv]:
    """Make the cache of each layer: [num_blocks, block_size, num_kv_heads, head_dim].

    Args:
        config: of the model.
        num_blocks: the null block 0 included.
        block_size: tokens in a block.
        dtype: number format of the cache.
        impl: implementation whose memory order is used.
        scales: of each layer, for FP8 alone.
    """
    sizes = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
    none = ((None, None),) * config.num_layers
    return [
        LayerKv(*ops.new_kv_cache(*sizes, dtype, impl=impl), k_scale, v_scale)
        for k_scale, v_scale in scales or none
    ]


def scales_in(kv: Sequence[LayerKv]) -> KvScales | None:
    """The scales that an FP8 cache was made with; None for any other."""
    pairs = [(layer.k_scale, layer.v_scale) for layer in kv]
    scales = tuple((k, v) for k, v in pairs if k is not None and v is not None)
    return scales or None


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return 2 * config.num_layers * block_size * config.kv_size * dtype.itemsize

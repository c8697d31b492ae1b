"""Scales of an FP8 KV cache that a checkpoint carries.

Names as vLLM reads them: `self_attn.k_scale` (compressed-tensors), `self_attn.k_proj.k_scale`
(ModelOpt), `self_attn.k_proj.output_scale` (older compressed-tensors); the same for v. A scale is
one number, or one for each KV head; real value = stored value x scale.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline_engine.core.errors import StartFailed
from paceline_engine.model.config import ModelConfig

if TYPE_CHECKING:
    from paceline_engine.model.weights import Checkpoint

KvScales = tuple[tuple[Tensor, Tensor], ...]
"""(k_scale, v_scale) of each layer, each [num_kv_heads] float32."""

_NAMES = ("{0}_scale", "{0}_proj.{0}_scale", "{0}_proj.output_scale")
_OF_OTHERS = ("q_scale", "prob_scale")
"""For engines that quantise queries and probabilities too; here these stay as they are."""


def take_kv_scales(checkpoint: "Checkpoint", config: ModelConfig) -> KvScales | None:
    """Read the scales of all layers; None if there are none.

    Raises:
        StartFailed: UnsupportedModel: scales that are incomplete, misshapen or not positive.
    """
    found = []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}.self_attn."
        for name in _OF_OTHERS:
            checkpoint.ignore(prefix + name)
        found.append(tuple(_scale(checkpoint, prefix, part, config) for part in ("k", "v")))
    known = [scale for pair in found for scale in pair if scale is not None]
    if not known:
        return None
    if len(known) != 2 * config.num_layers:
        raise _broken(f"{len(known)} of {2 * config.num_layers} scales of the KV cache are there")
    return tuple((k, v) for k, v in found if k is not None and v is not None)


def _scale(checkpoint: "Checkpoint", prefix: str, part: str, config: ModelConfig) -> Tensor | None:
    names = [prefix + name.format(part) for name in _NAMES]
    name = next((name for name in names if name in checkpoint), None)
    if name is None:
        return None
    scale = checkpoint.take_any(name).float().flatten()
    if scale.numel() not in {1, config.num_kv_heads}:
        raise _broken(
            f"{name} has {scale.numel()} values, expected 1 or one for each of the "
            f"{config.num_kv_heads} KV heads"
        )
    if not bool((torch.isfinite(scale) & (scale > 0)).all()):
        raise _broken(f"{name} must be positive, got {scale.tolist()}")
    return scale.expand(config.num_kv_heads).contiguous()


def _broken(what: str) -> StartFailed:
    return StartFailed("UnsupportedModel", f"cannot load the checkpoint: {what}")

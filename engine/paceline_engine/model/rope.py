"""Rotary position embedding: the table of cosines and sines."""

import math

import torch
from torch import Tensor

from paceline_engine.model.config import RopeConfig


def rotary_table(rope: RopeConfig, head_dim: int, num_positions: int) -> Tensor:
    """Cosines and sines of every position: [num_positions, head_dim] float32, halves side by side.

    Source: RoFormer, arXiv:2104.09864; scaling of Llama 3.1 as published with its checkpoints.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.llama3 is not None:
        scaling = rope.llama3
        wavelengths = 2 * math.pi / frequencies
        old = scaling.original_max_position_embeddings
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        share_kept = ((old / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
        frequencies = (1 - share_kept) * frequencies / scaling.factor + share_kept * frequencies
    frequencies = frequencies / rope.linear_factor
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)

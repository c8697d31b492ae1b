"""The decoder: embeddings, layers, final norm, logits. One class for every family."""

import torch
from torch import Tensor

from paceline_engine.model.config import ModelConfig
from paceline_engine.model.layers import ForwardBatch, attention, mlp, rotary_table
from paceline_engine.model.weights import DecoderWeights
from paceline_kernels import ops


class Decoder:
    """Weights and rotary table of one model; computes, keeps no state of requests."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        activation_dtype: torch.dtype,
        max_positions: int,
    ) -> None:
        self.config = config
        self.weights = weights
        self._dtype = activation_dtype
        self._cos_sin = rotary_table(config.rope, config.head_dim, max_positions)

    def forward(self, batch: ForwardBatch, kv: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Compute all tokens of a batch and write their keys and values.

        Args:
            batch: token ids must lie inside the vocabulary.
            kv: (keys, values) of each layer.

        Returns:
            [tokens, hidden] in the activation dtype, after the final norm.
        """
        config, weights = self.config, self.weights
        eps = config.rms_norm_eps
        hidden = ops.embedding(batch.token_ids, weights.embedding, self._dtype)
        residual: Tensor | None = None
        for layer, window, layer_kv in zip(weights.layers, config.sliding_windows, kv, strict=True):
            normed, residual = ops.rms_norm(hidden, layer.input_norm, eps, residual)
            hidden = attention(normed, layer, config, window, batch, layer_kv, self._cos_sin)
            normed, residual = ops.rms_norm(hidden, layer.post_norm, eps, residual)
            hidden = mlp(normed, layer)
        return ops.rms_norm(hidden, weights.final_norm, eps, residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits of chosen rows: [n, hidden] to [n, vocab] float32."""
        return ops.linear(hidden, self.weights.lm_head).float()

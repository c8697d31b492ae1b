"""A loaded model: weights laid out for the kernels, and the calls that compute with them.

The layers themselves are `paceline_kernels.decoder`: one call computes a whole step. A family is a
set of options of that decoder (families.py); none has code of its own here.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from paceline_engine.model.config import ModelConfig
from paceline_engine.model.kv_scales import KvScales
from paceline_engine.model.rope import rotary_table
from paceline_engine.model.weights import CPU, load_weights
from paceline_kernels import decoder as kernels
from paceline_kernels import ops
from paceline_kernels.paged_kv import LayerKv

KvCaches = list[LayerKv]


class Decoder:
    """Weights of one model; computes, keeps no state of requests.

    Attributes:
        impl: the kernels' implementation that it was laid out for.
        kv_scales: of an FP8 KV cache, if the checkpoint carries them.
    """

    def __init__(
        self, config: ModelConfig, prepared: kernels.Decoder, kv_scales: KvScales | None
    ) -> None:
        self.config = config
        self.impl = prepared.impl
        self.kv_scales = kv_scales
        self._prepared = prepared

    @classmethod
    def load(
        cls,
        folder: Path,
        config: ModelConfig,
        *,
        impl: str,
        max_positions: int,
        linear_dtype: torch.dtype = torch.float32,
        ops_impl: str | None = None,
        device: torch.device = CPU,
        progress: Callable[[float], None],
    ) -> "Decoder":
        """Read a model folder.

        Args:
            folder: holds safetensors files.
            config: of the same folder.
            impl: implementation of the products.
            linear_dtype: format of the products' inputs.
            ops_impl: implementation of everything else; None: the products' own.
            max_positions: length of the rotary table, the longest request.
            device: where weights lie and computation happens.
            progress: called with the share done.

        Raises:
            StartFailed: UnsupportedModel, naming what is missing, misshapen or not known.
        """
        weights = load_weights(folder, config, impl, progress, linear_dtype, device)
        shape = kernels.DecoderShape(
            hidden=config.hidden_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            ffn=config.intermediate_size,
            vocab=config.vocab_size,
            rotary_dim=config.head_dim,
            eps=config.rms_norm_eps,
            softmax_scale=config.head_dim**-0.5,
        )
        prepared = kernels.prepare_decoder(
            shape,
            weights.layers,
            embedding=weights.embedding,
            final_norm=weights.final_norm,
            lm_head=weights.lm_head,
            cos_sin=rotary_table(config.rope, config.head_dim, max_positions).to(device),
            ops_impl=ops_impl,
        )
        return cls(config, prepared, weights.kv_scales)

    def forward(
        self, batch: kernels.DecoderBatch, kv: KvCaches, *, keep_hidden: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Compute all tokens of a step and write their keys and values.

        Args:
            batch: token ids must lie inside the vocabulary.
            kv: cache of each layer.
            keep_hidden: also return the hidden states, for `logits`.

        Returns:
            Logits of `batch.logit_rows`, [n, vocab] float32, and the hidden states of all tokens
            after the final norm, [tokens, hidden] float32, or None.
        """
        hidden = None
        if keep_hidden:
            hidden = torch.empty(
                len(batch.token_ids), self.config.hidden_size, device=batch.token_ids.device
            )
        logits = kernels.decoder_forward(self._prepared, batch, kv, hidden_out=hidden)
        return logits, hidden

    @property
    def shared(self) -> kernels.Decoder:
        """What a draft head shares with its target: embedding, projection, implementations."""
        return self._prepared

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits of hidden states: [n, hidden] to [n, vocab] float32."""
        lm_head = self._prepared.lm_head
        return ops.linear(hidden.to(lm_head.dtype), lm_head).float()

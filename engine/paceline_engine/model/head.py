"""A draft head: one decoder layer that guesses a target's next state from its last one.

At position i it reads the token at i + 1 and the target's state at i, and gives what stands for the
target's state at i + 1, of which the target's own projection makes the token at i + 2. A guessed
state goes in like a state of the target's, so the head can guess on alone.

Sources: EAGLE, arXiv:2401.15077; DeepSeek-V3, arXiv:2412.19437, section 2.2. A head may know a part
of the vocabulary alone, which makes the projection cheaper: FR-Spec, arXiv:2502.14856.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from paceline_engine.core.errors import StartFailed
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.head_format import HeadFormat
from paceline_engine.model.rope import rotary_table
from paceline_engine.model.weights import Checkpoint, LayerReader
from paceline_kernels import composed, ops
from paceline_kernels.decoder import DecoderBatch, DecoderShape, PreparedLayer
from paceline_kernels.linear import LinearWeight
from paceline_kernels.paged_kv import LayerKv


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadWeights:
    """A head laid out for the kernels.

    Attributes:
        fuse: [hidden, 2 * hidden].
        embed_norm, hidden_norm, out_norm: [hidden] float32, or None.
        lm_head: [draft vocabulary, hidden].
        token_ids: [draft vocabulary] int64, the target's ids of its rows; None: all of them.
    """

    fuse: LinearWeight
    layer: PreparedLayer
    embed_norm: Tensor | None
    hidden_norm: Tensor | None
    out_norm: Tensor | None
    lm_head: LinearWeight
    token_ids: Tensor | None


class Head:
    """Weights of one head; computes, keeps no state of requests.

    Attributes:
        config: of its one layer.
    """

    def __init__(
        self,
        config: ModelConfig,
        form: HeadFormat,
        weights: HeadWeights,
        target: Decoder,
        max_positions: int,
    ) -> None:
        self.config = config
        self._form = form
        self._weights = weights
        self._target = target.shared
        self._shape = DecoderShape(
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
        table = rotary_table(config.rope, config.head_dim, max_positions)
        self._cos_sin = table.to(self._target.embedding.device)

    @classmethod
    def load(
        cls,
        folder: Path,
        config: ModelConfig,
        form: HeadFormat,
        *,
        target: Decoder,
        target_folder: Path,
        max_positions: int,
    ) -> "Head":
        """Read a head.

        Args:
            folder: holds its safetensors files; for MTP the target's.
            config: of its layer.
            form: how its tensors are named.
            target: whose embedding, projection and implementations it shares.
            target_folder: of the target.
            max_positions: length of the rotary table, the longest request.

        Raises:
            StartFailed: UnsupportedModel, naming what is missing, misshapen or not known.
        """
        weights = _read(folder, config, form, target, target_folder)
        return cls(config, form, weights, target, max_positions)

    def forward(self, batch: DecoderBatch, hidden: Tensor, kv: LayerKv) -> Tensor:
        """Guess the states behind tokens, and write the head's keys and values.

        Args:
            batch: positions i and the tokens at i + 1; on the weights' device. What
                `logit_rows` names is left to `logits`.
            hidden: [tokens, hidden] float32, states at i, of the target or guessed here.
            kv: the head's cache.

        Returns:
            [tokens, hidden] float32, for `logits` and as states of the next guess.
        """
        residual = composed.layer_forward(
            self._fused(batch, hidden),
            self._weights.layer,
            kv,
            batch,
            shape=self._shape,
            cos_sin=self._cos_sin,
            impl=self._target.ops_impl,
        )
        return self._normed(residual) if self._form.feeds_normed else residual

    def write_kv(self, batch: DecoderBatch, hidden: Tensor, kv: LayerKv) -> None:
        """Write keys and values and guess nothing, a quarter of `forward`'s work.

        One layer's keys and values depend on its input alone, so this is all that tokens need
        behind which nobody guesses.
        """
        composed.write_layer_kv(
            self._fused(batch, hidden),
            self._weights.layer,
            kv,
            batch,
            shape=self._shape,
            cos_sin=self._cos_sin,
            impl=self._target.ops_impl,
        )

    def logits(self, states: Tensor) -> Tensor:
        """Of guessed states [n, hidden]: [n, vocab] float32, -inf where the head knows no token."""
        weights = self._weights
        if not self._form.feeds_normed:
            states = self._normed(states)
        logits = composed.product(states, weights.lm_head)
        if weights.token_ids is None:
            return logits
        whole = torch.full((len(states), self.config.vocab_size), -torch.inf, device=states.device)
        return whole.index_copy_(1, weights.token_ids, logits)

    def _fused(self, batch: DecoderBatch, hidden: Tensor) -> Tensor:
        """What the layer reads, [tokens, hidden] float32."""
        weights, eps, impl = self._weights, self.config.rms_norm_eps, self._target.ops_impl
        embedded = ops.embedding(batch.token_ids, self._target.embedding, impl=impl)
        if weights.embed_norm is not None:
            embedded, _ = ops.rms_norm(embedded, weights.embed_norm, eps, impl=impl)
        if weights.hidden_norm is not None:
            hidden, _ = ops.rms_norm(hidden, weights.hidden_norm, eps, impl=impl)
        both = (hidden, embedded) if self._form.is_hidden_first else (embedded, hidden)
        return composed.product(torch.cat(both, dim=1), weights.fuse)

    def _normed(self, states: Tensor) -> Tensor:
        weight = self._weights.out_norm
        if weight is None:
            return states
        eps, impl = self.config.rms_norm_eps, self._target.ops_impl
        return ops.rms_norm(states, weight, eps, impl=impl)[0]


def _read(
    folder: Path, config: ModelConfig, form: HeadFormat, target: Decoder, target_folder: Path
) -> HeadWeights:
    shared, hidden = target.shared, config.hidden_size
    device, dtype = shared.embedding.device, shared.lm_head.dtype
    checkpoint = Checkpoint(folder, device)
    reader = LayerReader(checkpoint, config, shared.impl, dtype)
    fuse = reader.linear(form.fuse, hidden, 2 * hidden, f"{form.fuse}bias" in checkpoint)
    layer = reader.layer(form.layer, config.sliding_windows[0], has_input_norm=form.has_input_norm)
    norms = [
        None if name is None else reader.norm(name, hidden)
        for name in (form.embed_norm, form.hidden_norm, form.out_norm)
    ]
    token_ids = _draft_vocabulary(checkpoint, form.draft_vocabulary, config.vocab_size)
    lm_head = shared.lm_head
    if token_ids is not None:
        rows = _projection(target, target_folder)[token_ids]
        lm_head = ops.prepare_linear(rows, impl=shared.impl, dtype=dtype)
    for name in form.copies:
        checkpoint.ignore(name)
    checkpoint.check_all_read(form.prefix)
    return HeadWeights(
        fuse=fuse,
        layer=layer,
        embed_norm=norms[0],
        hidden_norm=norms[1],
        out_norm=norms[2],
        lm_head=lm_head,
        token_ids=token_ids,
    )


def _draft_vocabulary(checkpoint: Checkpoint, name: str, vocab_size: int) -> Tensor | None:
    """Ids of the tokens that a head knows; None: every one. Written as distances from the row."""
    if name not in checkpoint:
        return None
    distances = checkpoint.take_any(name)
    if distances.dtype != torch.int64 or distances.dim() != 1 or not len(distances):
        raise _broken(f"{name} must be a list of int64, got {distances.dtype} {distances.shape}")
    token_ids = torch.arange(len(distances), device=distances.device) + distances
    if int(token_ids.min()) < 0 or int(token_ids.max()) >= vocab_size:
        raise _broken(f"{name} must lead to tokens of the vocabulary of {vocab_size}")
    return token_ids


def _projection(target: Decoder, folder: Path) -> Tensor:
    """The target's vocabulary projection as it lies in the file, [vocab, hidden]."""
    if target.config.tie_word_embeddings:
        return target.shared.embedding
    sizes = (target.config.vocab_size, target.config.hidden_size)
    return Checkpoint(folder, target.shared.embedding.device).take("lm_head.weight", *sizes)


def _broken(what: str) -> StartFailed:
    return StartFailed("UnsupportedModel", f"cannot load the draft head: {what}")

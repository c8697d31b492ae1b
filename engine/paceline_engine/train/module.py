"""A draft head that can be trained: whole texts at once, nothing paged.

Computes what `model.head` computes; the names of its parameters are those of the checkpoint.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline_engine.model.config import ModelConfig
from paceline_engine.model.head_format import HeadFormat
from paceline_engine.model.rope import rotary_table


class TrainableHead(nn.Module):
    """A head over texts of at most `max_positions` tokens.

    Args:
        config: of its layer.
        form: names and order.
        max_positions: of the rotary table.
        seed: of the weights it starts from.
    """

    _cos_sin: Tensor

    def __init__(
        self, config: ModelConfig, form: HeadFormat, max_positions: int, seed: int
    ) -> None:
        super().__init__()
        self.config, self.form = config, form
        draw = torch.Generator().manual_seed(seed)
        self._weights = nn.ParameterDict()
        for name, sizes in self.shapes().items():
            if name.endswith("bias"):
                values = torch.zeros(sizes)
            elif len(sizes) == 1:
                values = torch.ones(sizes)
            else:
                values = torch.randn(sizes, generator=draw) * 0.02
            self._weights[_key(name)] = nn.Parameter(values)
        table = rotary_table(config.rope, config.head_dim, max_positions)
        self.register_buffer("_cos_sin", table, persistent=False)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Sizes of all tensors by their names in a checkpoint."""
        config, form = self.config, self.form
        hidden, ffn, attn = config.hidden_size, config.intermediate_size, f"{form.layer}self_attn."
        products = {
            form.fuse: (hidden, 2 * hidden, False),
            f"{attn}q_proj.": (config.q_size, hidden, config.qkv_bias),
            f"{attn}k_proj.": (config.kv_size, hidden, config.qkv_bias),
            f"{attn}v_proj.": (config.kv_size, hidden, config.qkv_bias),
            f"{attn}o_proj.": (hidden, config.q_size, config.o_bias),
            f"{form.layer}mlp.gate_proj.": (ffn, hidden, config.mlp_bias),
            f"{form.layer}mlp.up_proj.": (ffn, hidden, config.mlp_bias),
            f"{form.layer}mlp.down_proj.": (hidden, ffn, config.mlp_bias),
        }
        shapes: dict[str, tuple[int, ...]] = {}
        for prefix, (rows, columns, has_bias) in products.items():
            shapes[f"{prefix}weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}bias"] = (rows,)
        norms = [form.embed_norm, form.hidden_norm, form.out_norm]
        norms.append(f"{form.layer}post_attention_layernorm.weight")
        norms.append(f"{form.layer}input_layernorm.weight" if form.has_input_norm else None)
        shapes |= {name: (hidden,) for name in norms if name is not None}
        if config.qk_norm:
            shapes |= {f"{attn}{part}_norm.weight": (config.head_dim,) for part in "qk"}
        return shapes

    def tensors(self) -> dict[str, Tensor]:
        """The weights as a checkpoint names them."""
        return {name: self._weights[_key(name)].detach() for name in self.shapes()}

    def start_from(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over weights by their names in a checkpoint; those without a value stay."""
        with torch.no_grad():
            for name, values in tensors.items():
                self._weights[_key(name)].copy_(values)

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Guessed states.

        Args:
            embedded: [texts, tokens, hidden], embeddings of the tokens at i + 1.
            hidden: the same, states at i; position i is the place in the text.

        Returns:
            [texts, tokens, hidden], what `model.head.Head.forward` gives.
        """
        form = self.form
        embedded, hidden = (
            self._norm(form.embed_norm, embedded),
            self._norm(form.hidden_norm, hidden),
        )
        both = (hidden, embedded) if form.is_hidden_first else (embedded, hidden)
        residual = self._product(form.fuse, torch.cat(both, dim=-1))
        norm = f"{form.layer}input_layernorm.weight" if form.has_input_norm else None
        residual = residual + self._attention(self._norm(norm, residual))
        x = self._norm(f"{form.layer}post_attention_layernorm.weight", residual)
        mlp = f"{form.layer}mlp."
        gate = functional.silu(self._product(f"{mlp}gate_proj.", x))
        residual = residual + self._product(
            f"{mlp}down_proj.", gate * self._product(f"{mlp}up_proj.", x)
        )
        return self._norm(form.out_norm, residual) if form.feeds_normed else residual

    def projected(self, states: Tensor) -> Tensor:
        """What the vocabulary's projection reads."""
        return states if self.form.feeds_normed else self._norm(self.form.out_norm, states)

    def _attention(self, x: Tensor) -> Tensor:
        config, attn = self.config, f"{self.form.layer}self_attn."
        texts, tokens, _ = x.shape

        def heads(name: str, count: int) -> Tensor:
            values = self._product(f"{attn}{name}_proj.", x)
            return values.view(texts, tokens, count, config.head_dim).transpose(1, 2)

        q, k = heads("q", config.num_heads), heads("k", config.num_kv_heads)
        if config.qk_norm:
            q, k = self._norm(f"{attn}q_norm.weight", q), self._norm(f"{attn}k_norm.weight", k)
        q, k, v = self._rotated(q), self._rotated(k), heads("v", config.num_kv_heads)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self._product(f"{attn}o_proj.", out.transpose(1, 2).reshape(texts, tokens, -1))

    def _rotated(self, x: Tensor) -> Tensor:
        """[texts, heads, tokens, head_dim], halves paired."""
        cos, sin = self._cos_sin[: x.shape[2]].chunk(2, dim=-1)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def _product(self, prefix: str, x: Tensor) -> Tensor:
        bias = _key(f"{prefix}bias")
        return functional.linear(
            x,
            self._weights[_key(f"{prefix}weight")],
            self._weights.get(bias),
        )

    def _norm(self, name: str | None, x: Tensor) -> Tensor:
        if name is None:
            return x
        weight = self._weights[_key(name)]
        return functional.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


def _key(name: str) -> str:
    """Names of parameters may hold no dot."""
    return name.replace(".", "/")

"""What a decoder is, whatever its family: sizes, options per layer, rope."""

from dataclasses import dataclass
from typing import Literal

CheckpointDType = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding.

    Attributes:
        theta: base of the frequencies.
        linear_factor: positions are divided by it (1 = unscaled).
        llama3: scaling by wavelength of Llama 3.1, or None.
    """

    theta: float
    linear_factor: float = 1.0
    llama3: "Llama3Scaling | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Low frequencies are divided by `factor`, high ones kept, those between are blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A pre-norm decoder with rotary, grouped-query attention and a SiLU-gated MLP.

    Attributes:
        family: `model_type` of config.json.
        sliding_windows: per layer, keys that a query sees including its own; None sees all.
        qk_norm: RMS norm over each head of q and k before the rotation.
        checkpoint_dtype: number format of the stored weights.
        eos_token_ids: the model's own end tokens.
        num_mtp_layers: that predict the token behind the next one, for drafts alone.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    rope: RopeConfig
    sliding_windows: tuple[int | None, ...]
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    checkpoint_dtype: CheckpointDType = "bfloat16"
    eos_token_ids: tuple[int, ...] = ()
    num_mtp_layers: int = 0

    @property
    def q_size(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

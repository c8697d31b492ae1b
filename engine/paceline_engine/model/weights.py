"""From safetensors files to weights laid out for the kernels.

Projections that read the same input are joined (q, k, v; gate, up): one product instead of three
or two. Values stay in the checkpoint's 16-bit format where the kernels can read it: a bfloat16
value is exact in float32.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline_engine.core.errors import StartFailed
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.kv_scales import KvScales, take_kv_scales
from paceline_kernels import ops
from paceline_kernels.decoder import PreparedLayer
from paceline_kernels.linear import LinearWeight

CPU = torch.device("cpu")
IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)
"""Tensors that old checkpoints carry and nobody reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All of a model.

    Attributes:
        embedding: [vocab, hidden] as it lies in the file.
        kv_scales: of an FP8 KV cache, if the checkpoint carries them.
    """

    embedding: Tensor
    layers: tuple[PreparedLayer, ...]
    final_norm: Tensor
    lm_head: LinearWeight
    kv_scales: KvScales | None


class Checkpoint:
    """The safetensors files of a folder, read tensor by tensor through the page cache."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._device = device
        self._files = {path: _open(path) for path in _files(folder)}
        self._where = {
            name: path
            for path, file in self._files.items()
            for name in file.keys()  # noqa: SIM118  (safe_open is no mapping)
        }
        self._unread = set(self._where)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def take(self, name: str, *shape: int) -> Tensor:
        """Read one tensor and check its shape.

        Raises:
            StartFailed: UnsupportedModel: it is missing, or has another shape.
        """
        tensor = self.take_any(name)
        if tuple(tensor.shape) != shape:
            raise _broken(f"tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor

    def take_any(self, name: str) -> Tensor:
        """Read one tensor of whatever shape.

        Raises:
            StartFailed: UnsupportedModel: it is missing.
        """
        if name not in self._where:
            raise _broken(f"tensor {name} is missing")
        tensor: Tensor = self._files[self._where[name]].get_tensor(name)
        self._unread.discard(name)
        return tensor.to(self._device)

    def ignore(self, name: str) -> None:
        """Name a tensor that this model rightly does not use."""
        self._unread.discard(name)

    def ignore_under(self, prefix: str) -> None:
        """The same for all whose names begin so."""
        self._unread = {name for name in self._unread if not name.startswith(prefix)}

    def check_all_read(self, prefix: str = "") -> None:
        """An unread tensor is a feature that would be left out in silence.

        Args:
            prefix: of the names that are looked at.

        Raises:
            StartFailed: UnsupportedModel.
        """
        unread = sorted(
            name
            for name in self._unread
            if name.startswith(prefix) and not name.endswith(IGNORED_SUFFIXES)
        )
        if unread:
            shown = ", ".join(unread[:4])
            raise _broken(f"{len(unread)} tensors belong to no part of this family: {shown} ...")


def load_weights(
    folder: Path,
    config: ModelConfig,
    impl: str,
    progress: Callable[[float], None],
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
) -> Weights:
    """Read a whole model.

    Args:
        folder: holds *.safetensors and, with several, their index.
        config: of the same folder.
        impl: implementation of the kernels that the weights are laid out for.
        progress: called with the share done, 0 to 1.
        dtype: format of the products' inputs.
        device: where the weights will lie.

    Raises:
        StartFailed: UnsupportedModel, naming what is missing, misshapen or not known.
    """
    checkpoint = Checkpoint(folder, device)
    reader = LayerReader(checkpoint, config, impl, dtype)
    embedding = checkpoint.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers = []
    for index in range(config.num_layers):
        layers.append(reader.layer(f"model.layers.{index}.", config.sliding_windows[index]))
        progress((index + 1) / (config.num_layers + 1))
    if config.tie_word_embeddings:
        checkpoint.ignore("lm_head.weight")
        lm_head = ops.prepare_linear(embedding, impl=impl, dtype=dtype)
    else:
        lm_head = reader.linear("lm_head.", config.vocab_size, config.hidden_size, False)
    final_norm = reader.norm("model.norm.weight", config.hidden_size)
    kv_scales = take_kv_scales(checkpoint, config)
    for index in range(config.num_mtp_layers):  # they are read if they propose: `head`
        checkpoint.ignore_under(mtp_prefix(config, index))
    checkpoint.check_all_read()
    progress(1.0)
    return Weights(
        embedding=embedding,
        layers=tuple(layers),
        final_norm=final_norm,
        lm_head=lm_head,
        kv_scales=kv_scales,
    )


class LayerReader:
    """Reads layers under the names of the hub (`self_attn.q_proj.weight` ... behind a prefix)."""

    def __init__(
        self, checkpoint: Checkpoint, config: ModelConfig, impl: str, dtype: torch.dtype
    ) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._config = config
        self._impl = impl

    def layer(
        self, prefix: str, sliding_window: int | None, *, has_input_norm: bool = True
    ) -> PreparedLayer:
        """The layer whose names begin so."""
        config = self._config
        attn, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        hidden, ffn = config.hidden_size, config.intermediate_size
        qkv = {"q_proj": config.q_size, "k_proj": config.kv_size, "v_proj": config.kv_size}
        gate_up = {"gate_proj": ffn, "up_proj": ffn}
        head_norms = config.qk_norm
        input_norm = f"{prefix}input_layernorm.weight"
        return PreparedLayer(
            input_norm=self.norm(input_norm, hidden) if has_input_norm else None,
            qkv=self._joined(attn, qkv, hidden, config.qkv_bias),
            q_norm=self.norm(f"{attn}q_norm.weight", config.head_dim) if head_norms else None,
            k_norm=self.norm(f"{attn}k_norm.weight", config.head_dim) if head_norms else None,
            o=self.linear(f"{attn}o_proj.", hidden, config.q_size, config.o_bias),
            post_norm=self.norm(f"{prefix}post_attention_layernorm.weight", hidden),
            gate_up=self._joined(mlp, gate_up, hidden, config.mlp_bias, is_gated=True),
            down=self.linear(f"{mlp}down_proj.", hidden, ffn, config.mlp_bias),
            sliding_window=sliding_window,
        )

    def linear(self, prefix: str, rows: int, columns: int, has_bias: bool) -> LinearWeight:
        """A projection [rows, columns]."""
        weight = self._checkpoint.take(f"{prefix}weight", rows, columns)
        bias = self._checkpoint.take(f"{prefix}bias", rows) if has_bias else None
        return ops.prepare_linear(weight, bias, impl=self._impl, dtype=self._dtype)

    def norm(self, name: str, size: int) -> Tensor:
        """A norm's weight [size], float32."""
        return self._checkpoint.take(name, size).float().contiguous()

    def _joined(
        self,
        prefix: str,
        parts: dict[str, int],
        columns: int,
        has_bias: bool,
        *,
        is_gated: bool = False,
    ) -> LinearWeight:
        take = self._checkpoint.take
        weights = [take(f"{prefix}{part}.weight", rows, columns) for part, rows in parts.items()]
        bias = None
        if has_bias:
            bias = torch.cat([take(f"{prefix}{part}.bias", rows) for part, rows in parts.items()])
        return ops.prepare_linear(
            torch.cat(weights), bias, impl=self._impl, dtype=self._dtype, is_gated=is_gated
        )


def mtp_prefix(config: ModelConfig, index: int) -> str:
    """Where the names of a target's multi-token-prediction layer begin."""
    if config.family == "mimo":
        return f"model.mtp_layers.{index}."
    return f"model.layers.{config.num_layers + index}."


def weight_bytes(
    folder: Path, config: ModelConfig, impl: str, dtype: torch.dtype = torch.float32
) -> int:
    """Memory that `load_weights` will take, from the sizes of the files.

    Args:
        folder: as there.
        config: as there.
        impl: as there; "torch" keeps weights in `dtype`.
        dtype: as there.
    """
    stored = sum(path.stat().st_size for path in _files(folder))
    item = 4 if config.checkpoint_dtype == "float32" else 2
    widened = dtype.itemsize / item if impl == "torch" else 1.0
    embedding = config.vocab_size * config.hidden_size * item
    # A tied table is read where it lies and laid out a second time as the projection.
    return int(stored * max(1.0, widened)) + (embedding if config.tie_word_embeddings else 0)


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = [folder / name for name in _names_in(index)]
    else:
        files = [folder / "model.safetensors"]
    for path in files:
        if not path.is_file():
            raise _broken(f"{path} is missing; only safetensors checkpoints are read")
    return files


def _names_in(index: Path) -> list[str]:
    """Names of the files that an index speaks of."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _broken(f"{index} is no index of safetensors files ({error!r})") from error
    if not all(isinstance(name, str) for name in names):
        raise _broken(f"{index} is no index of safetensors files: a weight_map holds file names")
    return sorted(names)


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise _broken(f"{path} is no safetensors file ({error})") from error


def _broken(what: str) -> StartFailed:
    return StartFailed("UnsupportedModel", f"cannot load the checkpoint: {what}")

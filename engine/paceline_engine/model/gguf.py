"""From a .gguf file to a model folder as hubs have it: safetensors, config.json, tokenizer.

Done once per file; the engine then reads the folder like any other. Tensors are dequantised one
by one and streamed to disk. Needs neither torch nor transformers.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor, dequantize
from numpy.typing import NDArray

from paceline_engine.model.gguf_tokenizer import unsupported, write_tokenizer
from paceline_engine.model.safetensors_writer import TensorEntry, write_safetensors

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_STORED = {
    GGMLQuantizationType.F32: ("F32", 4),
    GGMLQuantizationType.F16: ("F16", 2),
}
"""Formats kept as they are, with the bytes of a value; every other becomes bfloat16."""
_BROKEN = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
"""What reading a damaged file can raise: the reader believes its counts and offsets."""


class _PlainReader(GGUFReader):  # type: ignore[misc]  # gguf has no types
    """The reader over a plain array: slicing numpy's memmap class costs most of the time."""

    @property
    def data(self) -> NDArray[np.uint8]:
        return self._plain

    @data.setter
    def data(self, mapped: NDArray[np.uint8]) -> None:
        self._plain = mapped.view(np.ndarray)


class GgufMetadata:
    """The key-value part of a file, read lazily: token lists are large."""

    def __init__(self, reader: GGUFReader) -> None:
        self._reader = reader
        self.architecture = str(self.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """Value of a full key."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def own(self, key: str, default: Any = None) -> Any:
        """Value of a key under the architecture's name."""
        return self.get(f"{self.architecture}.{key}", default)

    def needed(self, key: str) -> Any:
        """Like `own`, but it must be there.

        Raises:
            StartFailed: UnsupportedModel: it is not.
        """
        value = self.own(key)
        if value is None:
            raise unsupported(f"it has no {self.architecture}.{key}")
        return value


def convert_gguf(file: Path, folder: Path, progress: Callable[[float], None]) -> None:
    """Write the model folder of a .gguf file.

    Args:
        file: one file with all tensors.
        folder: exists; an interrupted conversion leaves it incomplete.
        progress: called with the share of tensors written.

    Raises:
        StartFailed: UnsupportedModel, naming what is not built.
    """
    try:
        reader = _PlainReader(file)
    except (OSError, *_BROKEN) as error:
        raise unsupported(f"{file} is not readable as GGUF: {error}") from error
    try:
        _write_folder(reader, folder, progress)
    except _BROKEN as error:
        raise unsupported(
            f"{file} is damaged or not whole ({type(error).__name__}: {error}); fetch it again"
        ) from error


def _write_folder(reader: GGUFReader, folder: Path, progress: Callable[[float], None]) -> None:
    metadata = GgufMetadata(reader)
    if metadata.architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise unsupported(f"architecture {metadata.architecture!r}; built are {known}")
    if metadata.own("expert_count"):
        raise unsupported("mixture of experts")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    eos = write_tokenizer(metadata.get, folder)
    dtype, width = _stored_format(reader.tensors)
    config = _config(metadata, tensors, dtype)
    _write_json(folder / "config.json", {**config, "eos_token_id": eos[0]})
    _write_json(folder / "generation_config.json", {"eos_token_id": eos})
    entries = [
        TensorEntry(
            name=_hub_name(name),
            dtype=dtype,
            shape=tuple(int(size) for size in reversed(tensor.shape)),
            num_bytes=int(np.prod(tensor.shape)) * width,
        )
        for name, tensor in tensors.items()
    ]
    data = _arrays(tensors, metadata, dtype, progress)
    write_safetensors(folder / "model.safetensors", entries, data)


def _arrays(
    tensors: dict[str, ReaderTensor],
    metadata: GgufMetadata,
    dtype: str,
    progress: Callable[[float], None],
) -> Iterator[bytes]:
    heads = int(metadata.needed("attention.head_count"))
    kv_heads = int(metadata.own("attention.head_count_kv", heads))
    for index, (name, tensor) in enumerate(tensors.items()):
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if metadata.architecture == "llama" and ".attn_q." in name:
            values = _unpermuted(values, heads)
        elif metadata.architecture == "llama" and ".attn_k." in name:
            values = _unpermuted(values, kv_heads)
        yield _rounded(values, dtype).tobytes()
        progress((index + 1) / len(tensors))


def _unpermuted(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF pairs neighbours for the rotation where hub checkpoints pair halves; undo it."""
    half = values.shape[0] // heads // 2
    paired = values.reshape(heads, half, 2, *values.shape[1:])
    return paired.swapaxes(1, 2).reshape(values.shape)


def _rounded(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    if dtype == "F32":
        return values
    if dtype == "F16":
        return values.astype(np.float16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    # bfloat16 is the upper half of a float32; ties go to even.
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _stored_format(tensors: list[ReaderTensor]) -> tuple[str, int]:
    """Safetensors dtype and bytes of a value, by the format of the matrices."""
    kinds = {tensor.tensor_type for tensor in tensors if len(tensor.shape) == 2}
    for kind, stored in _STORED.items():
        if kind in kinds:
            return stored
    return "BF16", 2


def _hub_name(name: str) -> str:
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    match = _LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in _IN_LAYER:
        raise unsupported(f"tensor {name}")
    return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"


def _config(metadata: GgufMetadata, tensors: dict[str, ReaderTensor], dtype: str) -> dict[str, Any]:
    architecture = metadata.architecture
    heads = int(metadata.needed("attention.head_count"))
    hidden = int(metadata.needed("embedding_length"))
    if "token_embd.weight" not in tensors:
        raise unsupported("it has no tensor token_embd.weight")
    config = {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "hidden_size": hidden,
        "num_hidden_layers": int(metadata.needed("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(metadata.own("attention.head_count_kv", heads)),
        "head_dim": int(metadata.own("attention.key_length", hidden // heads)),
        "intermediate_size": int(metadata.needed("feed_forward_length")),
        "max_position_embeddings": int(metadata.needed("context_length")),
        "hidden_act": "silu",
        "rms_norm_eps": _short_float(metadata.needed("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(metadata.own("rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype],
    }
    if architecture == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    scaling = metadata.own("rope.scaling.type", "none")
    if scaling != "none":
        factor = float(metadata.own("rope.scaling.factor", 1.0))
        config["rope_scaling"] = {"rope_type": scaling, "factor": factor}
    window = metadata.own("attention.sliding_window")
    if window:
        raise unsupported(f"attention.sliding_window {window}")
    return config


def _short_float(value: float) -> float:
    """A float32 as the decimal number that was meant: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")

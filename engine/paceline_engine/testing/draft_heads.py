"""Draft heads for tests: a tiny target of one layer, and heads that copy that layer.

Such a head sees all that its target sees but the text's first token, so many of its guesses hold
and some do not. Neither torch nor transformers is imported here.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from paceline_engine.core.arrays import Float32
from paceline_engine.testing.tiny_model import TinyModel

Tensors = dict[str, NDArray[Any]]
ONE_LAYER = TinyModel(num_layers=1)
_LAYER = "model.layers.0."


def write_eagle_head(folder: Path, target: Path, *, num_tokens: int = 0) -> Path:
    """Write the EAGLE head of a target of `ONE_LAYER`'s kind.

    Args:
        folder: of the head.
        target: folder of the target.
        num_tokens: the head knows the first ones alone; 0: all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    raw = json.loads((target / "config.json").read_text(encoding="utf-8"))
    kept = {name: value for name, value in raw.items() if name != "tie_word_embeddings"}
    (folder / "config.json").write_text(json.dumps(kept | {"num_hidden_layers": 1}))
    weights = load_file(target / "model.safetensors")
    head: Tensors = {"fc.weight": _reads_embedding(raw["hidden_size"])}
    norm = weights[f"{_LAYER}input_layernorm.weight"]
    for name, values in _layer(weights).items():
        if name == "input_layernorm.weight":
            continue
        # There is no norm before the projections: its weight goes into them.
        is_input = name.startswith("self_attn.") and not name.startswith("self_attn.o_proj")
        head[f"layers.0.{name}"] = values * norm if is_input else values
    _add_vocabulary(head, "d2t", num_tokens)
    save_file(head, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_mtp_model(folder: Path, *, family: str = "llama", num_tokens: int = 0) -> Path:
    """Write a target of one layer with a layer for multi-token prediction.

    Args:
        folder: of the model.
        family: llama has the names of DeepSeek-V3, mimo its own.
        num_tokens: as `write_eagle_head`.
    """
    is_mimo = family == "mimo"
    overrides = {"num_nextn_predict_layers": 1, **({"model_type": "mimo"} if is_mimo else {})}
    model = replace(ONE_LAYER, family="qwen2" if is_mimo else family, overrides=overrides)
    model.write(folder)
    weights: Tensors = dict(load_file(folder / "model.safetensors"))
    if is_mimo:
        weights |= _with_biases(weights)
    hidden, ones = model.hidden_size, np.ones(model.hidden_size, dtype=np.float32)
    prefix = "model.mtp_layers.0." if is_mimo else "model.layers.1."
    names = (
        ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_proj")
        if is_mimo
        else ("enorm", "hnorm", "shared_head.norm", "eh_proj")
    )
    for name, values in zip(names, (ones, ones, weights["model.norm.weight"]), strict=False):
        weights[f"{prefix}{name}.weight"] = values
    weights[f"{prefix}{names[3]}.weight"] = _reads_embedding(hidden, is_second=is_mimo)
    weights |= {f"{prefix}{name}": values.copy() for name, values in _layer(weights).items()}
    _add_vocabulary(weights, f"{prefix}d2t", num_tokens)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _reads_embedding(hidden: int, *, is_second: bool = False) -> Float32:
    """[hidden, 2 * hidden]: one half of the input, as it is."""
    return np.eye(hidden, 2 * hidden, k=hidden * is_second, dtype=np.float32)


def _layer(weights: Tensors) -> Tensors:
    return {
        name.removeprefix(_LAYER): values
        for name, values in weights.items()
        if name.startswith(_LAYER)
    }


def _with_biases(weights: Tensors) -> Tensors:
    """Biases of q, k, v that a family has and the weights of tests do not."""
    return {
        name.replace(".weight", ".bias"): np.zeros(len(values), dtype=np.float32)
        for name, values in weights.items()
        if any(f"{part}_proj.weight" in name for part in "qkv")
        and name.replace(".weight", ".bias") not in weights
    }


def _add_vocabulary(head: Tensors, name: str, num_tokens: int) -> None:
    if num_tokens:
        head[name] = np.zeros(num_tokens, dtype=np.int64)

"""A trained head as a folder that the engine loads.

EAGLE: a folder of its own. MTP: the target's whole checkpoint with one layer more, since that is
where its names have their place; the target's files are linked where the file system can.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline_engine.train.module import TrainableHead

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MTP_WEIGHTS = "mtp.safetensors"
_KEPT = (
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
    "hidden_act",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "bos_token_id",
    "eos_token_id",
)


def eagle_raw_config(target: Path) -> dict[str, Any]:
    """config.json of an EAGLE head of a target: one layer of its sizes, without biases."""
    raw = json.loads((target / "config.json").read_text(encoding="utf-8"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **{name: raw[name] for name in _KEPT if name in raw},
    }


def write_eagle(out: Path, head: TrainableHead, token_ids: Tensor, target: Path) -> None:
    """Write config.json and model.safetensors of an EAGLE head."""
    out.mkdir(parents=True, exist_ok=True)
    raw = eagle_raw_config(target) | {"draft_vocab_size": len(token_ids)}
    _write_json(out / "config.json", raw)
    _save(out / _WEIGHTS, _tensors(head, token_ids))


def write_mtp(out: Path, head: TrainableHead, token_ids: Tensor, target: Path) -> None:
    """Write the target's checkpoint with the head as its first layer behind the last one."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(target.iterdir()):
        if path.is_file() and path.name not in {"config.json", _INDEX}:
            _link(path, out / path.name)
    tensors = _tensors(head, token_ids)
    _save(out / _MTP_WEIGHTS, tensors)
    weight_map = _weight_map(target) | dict.fromkeys(tensors, _MTP_WEIGHTS)
    _write_json(out / _INDEX, {"metadata": {}, "weight_map": weight_map})
    raw = json.loads((target / "config.json").read_text(encoding="utf-8"))
    _write_json(out / "config.json", raw | {"num_nextn_predict_layers": 1})


def _tensors(head: TrainableHead, token_ids: Tensor) -> dict[str, Tensor]:
    """bfloat16 like the weights beside them; the vocabulary as distances from the row."""
    tensors = {name: values.bfloat16().contiguous() for name, values in head.tensors().items()}
    if len(token_ids) < head.config.vocab_size:
        tensors[head.form.draft_vocabulary] = token_ids - torch.arange(len(token_ids))
    return tensors


def _weight_map(target: Path) -> dict[str, str]:
    index = target / _INDEX
    if index.is_file():
        found: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return found
    with safe_open(target / _WEIGHTS, framework="pt") as file:
        return dict.fromkeys(file.keys(), _WEIGHTS)


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.replace(path)


def _link(source: Path, path: Path) -> None:
    path.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), path)
    except OSError:  # another file system
        shutil.copyfile(source, path)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")

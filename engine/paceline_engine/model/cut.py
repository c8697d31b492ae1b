"""A draft model cut out of its target: some of the layers between the same embedding and head.

Where nobody has published a smaller model of the same tokenizer, this is the simplest one: first
layers, where a text is read, and the last, which the head was made for. It is a folder like any
other, so it may be trained further with whatever trains such folders, and then served as it is.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

_LAYER = re.compile(r"^(model\.layers\.)(\d+)(\..+)$")
_COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def kept_layers(num_layers: int, num_kept: int) -> list[int]:
    """Indices of the layers that stay: the first ones and the last.

    Raises:
        ValueError: not fewer than there are, or none.
    """
    if not 1 <= num_kept < num_layers:
        raise ValueError(f"layers must be 1 to {num_layers - 1} of {num_layers}, got {num_kept}")
    return [*range(num_kept - 1), num_layers - 1]


def cut_draft_model(target: Path, out: Path, num_layers: int) -> list[int]:
    """Write a folder with fewer layers.

    Args:
        target: a model folder with safetensors.
        out: the new folder; must not exist.
        num_layers: that it keeps.

    Returns:
        Which ones.

    Raises:
        ValueError: see `kept_layers`.
        FileExistsError: `out` is there already.
    """
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    kept = kept_layers(int(config["num_hidden_layers"]), num_layers)
    out.mkdir(parents=True)
    for name in _COPIED:
        if (target / name).is_file():
            shutil.copy(target / name, out / name)
    (out / "config.json").write_text(json.dumps(_cut_config(config, kept), indent=1) + "\n")
    save_file(_cut_weights(target, kept), out / "model.safetensors", metadata={"format": "pt"})
    return kept


def _cut_config(config: dict[str, Any], kept: list[int]) -> dict[str, Any]:
    made = {**config, "num_hidden_layers": len(kept)}
    if isinstance(config.get("layer_types"), list):
        made["layer_types"] = [config["layer_types"][layer] for layer in kept]
    return made


def _cut_weights(target: Path, kept: list[int]) -> dict[str, Tensor]:
    """Tensors that stay, layers under their new numbers."""
    new_index = {str(layer): index for index, layer in enumerate(kept)}
    tensors: dict[str, Tensor] = {}
    for path in sorted(target.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (safe_open is no mapping)
                found = _LAYER.match(name)
                if found is None:
                    tensors[name] = file.get_tensor(name)
                elif found[2] in new_index:
                    renamed = f"{found[1]}{new_index[found[2]]}{found[3]}"
                    tensors[renamed] = file.get_tensor(name)
    return tensors

"""A tiny model with random weights, a real tokenizer and a chat template, for tests of every room.

The folder has the form that model hubs use (config.json, model.safetensors, tokenizer.json,
tokenizer_config.json, generation_config.json), so that the engine and transformers both load it.
Neither torch nor transformers is imported here.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline_engine.core.arrays import Float32

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
EOS_TOKEN_ID = 2

_CORPUS = """The scheduler plans a step, the runner computes it, and the client reads the tokens.
A request waits until there are blocks for its prompt; then it runs, and every step gives it one
token more. When blocks run out, somebody is preempted, and later the same tokens are computed
again. What is the capital of France? The capital of France is Paris. Once upon a time there was a
small model that could not say anything sensible, but it always said the same thing twice. Counting:
one two three four five six seven eight nine ten eleven twelve. Hello, world! How are you today?
I am fine, thank you. Write a short story about a river, a bridge and the people who cross it.
The water was cold and the people were warm; the bridge held all of them, and the river went on.
user assistant system message content role helpful engine memory cache prefix token batch"""

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """Shape of a tiny model; `write` makes its folder.

    Attributes:
        family: llama, mistral, qwen2 or qwen3.
        num_shards: safetensors files; more than one writes an index beside them.
        overrides: entries that replace or extend those of config.json, e.g. sliding_window.
    """

    family: str = "llama"
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    intermediate_size: int = 128
    max_position_embeddings: int = 2048
    tied: bool = False
    vocab_size: int = 512
    seed: int = 0
    num_shards: int = 1
    overrides: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write the whole folder and return it."""
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = tiny_tokenizer(self.vocab_size)
        tokenizer.save(str(folder / "tokenizer.json"))
        _write_json(folder / "tokenizer_config.json", _tokenizer_config(self))
        config = self.config(tokenizer.get_vocab_size())
        _write_json(folder / "config.json", config)
        _write_json(
            folder / "generation_config.json",
            {"bos_token_id": 1, "eos_token_id": EOS_TOKEN_ID, "pad_token_id": 0},
        )
        _write_weights(folder, tiny_weights(config, self.seed), self.num_shards)
        return folder

    def config(self, vocab_size: int) -> dict[str, Any]:
        """What config.json holds."""
        return {
            "architectures": [_ARCHITECTURES[self.family]],
            "model_type": self.family,
            "vocab_size": vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": EOS_TOKEN_ID,
            "torch_dtype": "float32",
            **({"sliding_window": None} if self.family == "mistral" else {}),
            **self.overrides,
        }


def write_draft_model(folder: Path, target: Path, *, noise: float) -> Path:
    """Write a model that mostly says what a tiny target says: its weights, disturbed.

    Args:
        folder: made.
        target: of `TinyModel.write`, in one file.
        noise: of the weights, as a share of their spread; 0 copies.
    """
    shutil.copytree(target, folder)
    rng = np.random.default_rng(7)
    weights = load_file(target / "model.safetensors")
    for name, values in weights.items():
        drawn = rng.standard_normal(values.shape, dtype=np.float32)
        weights[name] = values + np.float32(noise * values.std()) * drawn
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_tiny_model(folder: Path, *, family: str = "llama", seed: int = 0) -> Path:
    """Write a tiny model of `family` with every other choice at its default."""
    return TinyModel(family=family, seed=seed).write(folder)


def tiny_tokenizer(vocab_size: int = 512) -> Tokenizer:
    """A byte-level BPE tokenizer: any text comes back unchanged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS], trainer)
    return tokenizer


def tiny_weights(config: dict[str, Any], seed: int) -> dict[str, Float32]:
    """Random tensors under the names of the hub, large enough that the layers decide the tokens.

    With the usual small initialisation the residual stream hardly leaves the embedding, and a
    model repeats its last token for ever: a test of greedy identity would show little.
    """
    rng = np.random.default_rng(seed)
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    q_size = config["num_attention_heads"] * head_dim
    kv_size = config["num_key_value_heads"] * head_dim
    ffn = config["intermediate_size"]
    family = config["model_type"]
    qkv_bias = family == "qwen2" or bool(config.get("attention_bias"))
    o_bias = family != "qwen2" and bool(config.get("attention_bias"))
    mlp_bias = bool(config.get("mlp_bias"))

    def matrix(rows: int, columns: int, scale: float = 1.5) -> Float32:
        values = rng.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(scale / np.sqrt(columns))

    def norm(size: int) -> Float32:
        return np.float32(1.0) + np.float32(0.2) * rng.standard_normal(size, dtype=np.float32)

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden, np.sqrt(hidden))}
    tensors["model.norm.weight"] = norm(hidden)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden, 3.0)
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        shapes = {
            "self_attn.q_proj": (q_size, hidden, qkv_bias),
            "self_attn.k_proj": (kv_size, hidden, qkv_bias),
            "self_attn.v_proj": (kv_size, hidden, qkv_bias),
            "self_attn.o_proj": (hidden, q_size, o_bias),
            "mlp.gate_proj": (ffn, hidden, mlp_bias),
            "mlp.up_proj": (ffn, hidden, mlp_bias),
            "mlp.down_proj": (hidden, ffn, mlp_bias),
        }
        for name, (rows, columns, has_bias) in shapes.items():
            tensors[f"{layer}{name}.weight"] = matrix(rows, columns)
            if has_bias:
                bias = rng.standard_normal(rows, dtype=np.float32)
                tensors[f"{layer}{name}.bias"] = np.float32(0.5) * bias
        tensors[f"{layer}input_layernorm.weight"] = norm(hidden)
        tensors[f"{layer}post_attention_layernorm.weight"] = norm(hidden)
        if family == "qwen3":
            tensors[f"{layer}self_attn.q_norm.weight"] = norm(head_dim)
            tensors[f"{layer}self_attn.k_norm.weight"] = norm(head_dim)
    return tensors


def _write_weights(folder: Path, tensors: dict[str, Float32], num_shards: int) -> None:
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(tensors)
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        chosen = {name: tensors[name] for name in names[shard::num_shards]}
        save_file(chosen, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(chosen, file))
    index = {"metadata": {}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)


def _tokenizer_config(model: TinyModel) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.max_position_embeddings,
        "chat_template": CHAT_TEMPLATE,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")

"""From the tokenizer metadata of a GGUF file to tokenizer.json and tokenizer_config.json.

Byte-level BPE (`tokenizer.ggml.model` gpt2) with the pre-tokenizers named below. The name in
`tokenizer.ggml.pre` decides how text is cut before BPE; a wrong cut gives other ids for digits
and for letters that carry accents, so an unknown name is refused.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from paceline_engine.core.errors import StartFailed

Get = Callable[..., Any]

_CONTROL, _USER_DEFINED = 3, 4
"""Token types of GGUF that are matched before BPE."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA_3 = _CONTRACTIONS + _WORD + r"|\p{N}{1,3}" + _REST
_QWEN_2 = _CONTRACTIONS + _WORD + r"|\p{N}" + _REST


def write_tokenizer(get: Get, folder: Path) -> list[int]:
    """Write both files.

    Args:
        get: value of a metadata key, or the default given.
        folder: where they go.

    Returns:
        The end tokens, the model's own first.

    Raises:
        StartFailed: UnsupportedModel, naming the tokenizer that is not built.
    """
    kind, pre = get("tokenizer.ggml.model"), get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise unsupported(
            f"tokenizer.ggml.model {kind!r}; built is 'gpt2' (byte-level BPE). Use the model's "
            "safetensors folder, which brings its own tokenizer"
        )
    tokens: list[str] = get("tokenizer.ggml.tokens")
    tokenizer = _byte_level_bpe(tokens, get("tokenizer.ggml.merges"), str(pre))
    types = get("tokenizer.ggml.token_type", [])
    matched = [i for i, kind in enumerate(types) if kind in {_CONTROL, _USER_DEFINED}]
    for index in matched:
        is_special = types[index] == _CONTROL
        added = AddedToken(tokens[index], normalized=False, special=is_special)
        if is_special:
            tokenizer.add_special_tokens([added])
        else:
            tokenizer.add_tokens([added])
    bos = get("tokenizer.ggml.bos_token_id")
    if get("tokenizer.ggml.add_bos_token", pre == "llama-bpe") and bos is not None:
        tokenizer.post_processor = TemplateProcessing(
            single=f"{tokens[bos]} $A",
            pair=f"{tokens[bos]} $A {tokens[bos]}:1 $B:1",
            special_tokens=[(tokens[bos], bos)],
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = _tokenizer_config(get, tokens)
    text = json.dumps(config, indent=1, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return _end_tokens(get)


def _byte_level_bpe(tokens: list[str], merges: list[str], pre: str) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab, pairs, ignore_merges=pre == "llama-bpe"))
    tokenizer.decoder = decoders.ByteLevel()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if pre == "gpt-2":
        tokenizer.pre_tokenizer = byte_level
    elif pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    elif pre in {"llama-bpe", "qwen2"}:
        pattern = Regex(_LLAMA_3 if pre == "llama-bpe" else _QWEN_2)
        split = pre_tokenizers.Split(pattern, "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
        if pre == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
    else:
        raise unsupported(f"tokenizer.ggml.pre {pre!r}; built are gpt-2, smollm, llama-bpe, qwen2")
    return tokenizer


def _tokenizer_config(get: Get, tokens: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(get("tokenizer.ggml.add_bos_token", False)),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
    }
    names = {"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk"}
    for key, name in names.items():
        index = get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            config[f"{name}_token"] = tokens[index]
    architecture = get("general.architecture")
    config["model_max_length"] = int(get(f"{architecture}.context_length"))
    template = get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config


def _end_tokens(get: Get) -> list[int]:
    """End of text, and end of turn or message where the file names them."""
    keys = ("eos", "eot", "eom")
    found = [get(f"tokenizer.ggml.{key}_token_id") for key in keys]
    ids = list(dict.fromkeys(int(index) for index in found if index is not None))
    if not ids:
        raise unsupported("it names no end token (tokenizer.ggml.eos_token_id)")
    return ids


def unsupported(what: str) -> StartFailed:
    """The error for a .gguf file with something that is not built."""
    return StartFailed("UnsupportedModel", f"this GGUF model cannot be served: {what}")

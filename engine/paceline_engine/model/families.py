"""From config.json to a ModelConfig: one function per family, one entry in FAMILIES.

Everything that a family may ask for and that is not built is refused here by name, so that no
model is ever computed with a feature left out in silence.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from paceline_engine.core.errors import StartFailed
from paceline_engine.model.config import (
    CheckpointDType,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
)

Raw = Mapping[str, Any]


def load_config(folder: Path) -> ModelConfig:
    """Read config.json and generation_config.json of a model folder.

    Raises:
        StartFailed: UnsupportedModel, naming the family or feature that is not built.
    """
    return config_of(raw_config(folder), folder)


def raw_config(folder: Path) -> dict[str, Any]:
    """What config.json of a folder holds.

    Raises:
        StartFailed: UnsupportedModel: there is none that can be read.
    """
    return _read_json(folder / "config.json")


def config_of(raw: Raw, folder: Path) -> ModelConfig:
    """From what config.json holds.

    Args:
        raw: its content.
        folder: for messages, and for generation_config.json.

    Raises:
        StartFailed: as `load_config`.
    """
    family = str(raw.get("model_type", ""))
    if family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise _unsupported(f"model_type {family!r}; built are {known}")
    try:
        config = FAMILIES[family](raw, _eos_token_ids(folder, raw))
    except KeyError as error:
        raise _unsupported(f"a config.json without {error.args[0]!r}") from error
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise _unsupported(
            f"this {folder / 'config.json'}: a value has another form than its name says ({error})"
        ) from error
    _check_values(config)
    return config


_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
)


def _check_values(config: ModelConfig) -> None:
    """What would divide by zero, or compute nonsense, is refused before the weights are read."""
    for name in _SIZES:
        if getattr(config, name) < 1:
            raise _unsupported(
                f"a config.json with {name} {getattr(config, name)}; it must be >= 1"
            )
    if config.num_heads % config.num_kv_heads:
        raise _unsupported(
            f"{config.num_heads} heads over {config.num_kv_heads} KV heads; they must divide evenly"
        )
    rope = config.rope
    factor = rope.llama3.factor if rope.llama3 else rope.linear_factor
    for name, value in (("rope_theta", rope.theta), ("rope scaling factor", factor)):
        if not 0 < value < math.inf:
            raise _unsupported(f"a {name} of {value}; it must be a number above 0")
    strange = [eos for eos in config.eos_token_ids if not 0 <= eos < config.vocab_size]
    if strange:
        raise _unsupported(
            f"end tokens {strange}, which are not in the vocabulary of {config.vocab_size}; "
            "correct eos_token_id in generation_config.json or config.json"
        )


def _llama(raw: Raw, eos: tuple[int, ...]) -> ModelConfig:
    attention_bias = bool(raw.get("attention_bias", False))
    return replace(
        _decoder(raw, eos),
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        mlp_bias=bool(raw.get("mlp_bias", False)),
    )


def _mistral(raw: Raw, eos: tuple[int, ...]) -> ModelConfig:
    config = _decoder(raw, eos)
    window = raw.get("sliding_window", 4096)
    return replace(config, sliding_windows=(window,) * config.num_layers)


def _qwen2(raw: Raw, eos: tuple[int, ...]) -> ModelConfig:
    config = _decoder(raw, eos)
    return replace(config, qkv_bias=True, sliding_windows=_qwen_windows(raw, config.num_layers))


def _qwen3(raw: Raw, eos: tuple[int, ...]) -> ModelConfig:
    config = _decoder({"head_dim": 128, **raw}, eos)
    bias = bool(raw.get("attention_bias", False))
    return replace(
        config,
        qk_norm=True,
        qkv_bias=bias,
        o_bias=bias,
        sliding_windows=_qwen_windows(raw, config.num_layers),
    )


FAMILIES: dict[str, Callable[[Raw, tuple[int, ...]], ModelConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mimo": _qwen2,
}
"""model_type -> reader of config.json. SmolLM and SmolLM2 say "llama"."""


def _decoder(raw: Raw, eos: tuple[int, ...]) -> ModelConfig:
    """What all families share; options are off."""
    _refuse_quantised(raw.get("quantization_config") or {})
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise _unsupported(f"hidden_act {activation!r}; built is 'silu'")
    if raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise _unsupported(f"partial_rotary_factor {raw['partial_rotary_factor']}")
    num_heads = int(raw["num_attention_heads"])
    hidden_size = int(raw["hidden_size"])
    return ModelConfig(
        family=raw["model_type"],
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden_size,
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
        head_dim=int(raw.get("head_dim") or hidden_size // num_heads),
        intermediate_size=int(raw["intermediate_size"]),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_position_embeddings=int(raw["max_position_embeddings"]),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        rope=_rope(raw),
        sliding_windows=(None,) * int(raw["num_hidden_layers"]),
        checkpoint_dtype=_checkpoint_dtype(raw),
        eos_token_ids=eos,
        num_mtp_layers=int(raw.get("num_nextn_predict_layers") or 0),
    )


def _refuse_quantised(quantization: Raw) -> None:
    """Quantised weights are not built; scales of an FP8 KV cache alone are (compressed-tensors)."""
    if not quantization:
        return
    method = quantization.get("quant_method", "?")
    scheme = quantization.get("kv_cache_scheme")
    if method != "compressed-tensors" or quantization.get("config_groups") or not scheme:
        raise _unsupported(f"a quantised checkpoint (quantization_config {method!r})")
    is_fp8 = scheme.get("num_bits") == 8 and scheme.get("type") == "float"
    if not is_fp8 or scheme.get("dynamic") or not scheme.get("symmetric", True):
        raise _unsupported(f"kv_cache_scheme {dict(scheme)}; built is a static, symmetric FP8")


def _rope(raw: Raw) -> RopeConfig:
    """Both spellings: `rope_parameters`, and `rope_theta` with `rope_scaling`."""
    scaling: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise _unsupported(f"partial_rotary_factor {scaling['partial_rotary_factor']}")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, linear_factor=float(scaling["factor"]))
    if kind == "llama3":
        llama3 = Llama3Scaling(
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_max_position_embeddings=int(scaling["original_max_position_embeddings"]),
        )
        return RopeConfig(theta=theta, llama3=llama3)
    raise _unsupported(f"rope scaling {kind!r}; built are default, linear and llama3")


def _qwen_windows(raw: Raw, num_layers: int) -> tuple[int | None, ...]:
    window = raw.get("sliding_window") if raw.get("use_sliding_window", False) else None
    if window is None:
        return (None,) * num_layers
    kinds = raw.get("layer_types")
    if kinds is None:
        first = int(raw.get("max_window_layers", 28))
        kinds = ["full_attention" if i < first else "sliding_attention" for i in range(num_layers)]
    strange = set(kinds) - {"full_attention", "sliding_attention"}
    if strange:
        raise _unsupported(f"layer_types {sorted(strange)}")
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def _checkpoint_dtype(raw: Raw) -> CheckpointDType:
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32")
    if name not in {"float32", "bfloat16", "float16"}:
        raise _unsupported(f"weights of dtype {name!r}; built are float32, bfloat16, float16")
    return cast("CheckpointDType", name)


def _eos_token_ids(folder: Path, raw: Raw) -> tuple[int, ...]:
    """Generation config first: it names every end token of a chat model, config.json often one."""
    path = folder / "generation_config.json"
    generation = _read_json(path) if path.is_file() else {}
    eos = generation.get("eos_token_id")
    if eos is None:
        eos = raw.get("eos_token_id")
    if eos is None:
        return ()
    found = eos if isinstance(eos, list) else [eos]
    for one in found:
        if not isinstance(one, int) or isinstance(one, bool):
            raise TypeError(f"eos_token_id must hold token ids, got {one!r}")
    return tuple(found)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unsupported(f"a folder without a readable {path.name} ({path}: {error})") from error
    if not isinstance(content, dict):
        raise _unsupported(f"a {path.name} that is no JSON object ({path})")
    return content


def _unsupported(what: str) -> StartFailed:
    return StartFailed("UnsupportedModel", f"this engine does not serve {what}")

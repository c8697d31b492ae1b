"""Every family computes the logits that transformers computes, in float32."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline_engine.core.errors import StartFailed
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.families import load_config
from paceline_engine.run.kv_cache import allocate_kv_cache
from paceline_engine.testing.oracle import Oracle
from paceline_engine.testing.tiny_model import TinyModel
from paceline_kernels import ops
from paceline_kernels.decoder import DecoderBatch

BLOCK_SIZE = 8
LLAMA_3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

SHAPES = {
    "llama": TinyModel(),
    "llama, tied": TinyModel(tied=True),
    "llama, biases": TinyModel(overrides={"attention_bias": True, "mlp_bias": True}),
    "llama, every head its own key": TinyModel(num_kv_heads=4),
    "llama, one key head": TinyModel(num_kv_heads=1, num_layers=3),
    "llama, linear scaling": TinyModel(
        overrides={"rope_scaling": {"type": "linear", "factor": 4.0}}
    ),
    "llama, Llama 3 scaling": TinyModel(
        overrides={"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA_3}}
    ),
    "llama, rope_parameters": TinyModel(
        overrides={
            "rope_theta": None,
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA_3},
        }
    ),
    "llama, shards": TinyModel(num_shards=3),
    "mistral": TinyModel(family="mistral"),
    "mistral, window": TinyModel(family="mistral", overrides={"sliding_window": 24}),
    "qwen2": TinyModel(family="qwen2"),
    "qwen2, window from the second layer": TinyModel(
        family="qwen2",
        num_layers=3,
        overrides={"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": TinyModel(family="qwen3", tied=True),
    "qwen3, wide heads": TinyModel(family="qwen3", head_dim=32),
}


def load(folder: Path, impl: str = "torch") -> Decoder:
    return Decoder.load(
        folder,
        load_config(folder),
        impl=impl,
        max_positions=256,
        progress=lambda share: None,
    )


def chunked_logits(decoder: Decoder, token_ids: list[int], chunks: list[int]) -> Tensor:
    """Logits of all positions, computed chunk by chunk over blocks in a mixed order."""
    num_blocks = -(-len(token_ids) // BLOCK_SIZE)
    kv = allocate_kv_cache(decoder.config, num_blocks + 1, BLOCK_SIZE, torch.float32, decoder.impl)
    table = torch.from_numpy(np.random.default_rng(0).permutation(num_blocks) + 1)
    parts = []
    start = 0
    for size in chunks:
        positions = torch.arange(start, start + size)
        batch = DecoderBatch(
            token_ids=torch.tensor(token_ids[start : start + size]),
            positions=positions,
            slot_mapping=table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
            block_tables=table.int().unsqueeze(0),
            cu_seqlens_q=torch.tensor([0, size], dtype=torch.int32),
            seq_lens=torch.tensor([start + size], dtype=torch.int32),
            logit_rows=torch.arange(size),
        )
        logits, hidden = decoder.forward(batch, kv, keep_hidden=True)
        assert hidden is not None
        torch.testing.assert_close(decoder.logits(hidden), logits)
        parts.append(logits)
        start += size
    return torch.cat(parts)


@pytest.fixture(scope="module", params=["torch", "cpu"])
def impl(request: pytest.FixtureRequest, leave_out: Callable[[str], NoReturn]) -> str:
    if request.param == "cpu" and (reason := ops.cpu_unavailable_reason()) is not None:
        leave_out(f"needs the C++ kernels: {reason}")
    return str(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_transformers(name: str, impl: str, tmp_path: Path) -> None:
    folder = SHAPES[name].write(tmp_path / "model")
    token_ids = np.random.default_rng(1).integers(3, 500, 90).tolist()
    expected = Oracle(folder).logits(token_ids)
    with torch.inference_mode():
        decoder = load(folder, impl)
        whole = chunked_logits(decoder, token_ids, [90])
        in_chunks = chunked_logits(decoder, token_ids, [1, 40, 30, 1, 1, 17])
    # Two orders of summation in float32: logits are near 10, errors of a few 1e-5.
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(in_chunks, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_a_wrong_window_would_show(tmp_path: Path) -> None:
    model = TinyModel(family="mistral", overrides={"sliding_window": 24})
    wider = dataclasses.replace(model, overrides={"sliding_window": 25})
    token_ids = np.random.default_rng(1).integers(3, 500, 60).tolist()
    with torch.inference_mode():
        narrow = chunked_logits(load(model.write(tmp_path / "a")), token_ids, [60])
        wide = chunked_logits(load(wider.write(tmp_path / "b")), token_ids, [60])
    torch.testing.assert_close(narrow[:24], wide[:24], rtol=1e-4, atol=1e-3)
    assert (narrow[24:] - wide[24:]).abs().max() > 0.05


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"model_type": "gpt_neox"}, "gpt_neox"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ],
)
def test_a_feature_that_is_not_built_is_refused_by_name(
    overrides: dict[str, object], named: str, tmp_path: Path
) -> None:
    folder = TinyModel().write(tmp_path)
    config = TinyModel(overrides=overrides).config(512)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(StartFailed, match=named) as refused:
        load_config(folder)
    assert refused.value.reason == "UnsupportedModel"

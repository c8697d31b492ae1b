"""Draft heads under the names that checkpoints of the field use compute what is trained."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline_engine.core.errors import StartFailed
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.families import load_config
from paceline_engine.model.head import Head
from paceline_engine.model.head_format import (
    EAGLE,
    HeadFormat,
    eagle_config,
    mtp_config,
    mtp_format,
    refuse_without_mtp,
)
from paceline_engine.run.kv_cache import allocate_kv_cache
from paceline_engine.testing.draft_heads import ONE_LAYER, write_eagle_head, write_mtp_model
from paceline_engine.train.module import TrainableHead
from paceline_kernels.decoder import DecoderBatch

BLOCK_SIZE, TOKENS = 8, 21
NO_PROGRESS: Any = lambda _share: None  # noqa: E731


@dataclass
class Made:
    """A target, a head, and the tensors of the head's file."""

    target: Decoder
    head: Head
    form: HeadFormat
    tensors: dict[str, Tensor]

    def twin(self) -> TrainableHead:
        """The same head as it is trained."""
        twin = TrainableHead(self.head.config, self.form, 64, seed=1)
        twin.start_from({name: self.tensors[name] for name in twin.shapes()})
        return twin


def make(tmp_path: Path, kind: str, impl: str = "torch", num_tokens: int = 0) -> Made:
    model = tmp_path / "model"
    if kind == "eagle":
        ONE_LAYER.write(model)
        folder = write_eagle_head(tmp_path / "head", model, num_tokens=num_tokens)
        config, form = eagle_config(folder, load_config(model)), EAGLE
    else:
        folder = write_mtp_model(model, family=kind, num_tokens=num_tokens)
        config, form = mtp_config(load_config(model)), mtp_format(load_config(model))
    target = Decoder.load(
        model, load_config(model), impl=impl, max_positions=64, progress=NO_PROGRESS
    )
    head = Head.load(folder, config, form, target=target, target_folder=model, max_positions=64)
    return Made(target, head, form, load_file(folder / "model.safetensors"))


def rows(token_ids: Tensor, start: int, end: int) -> DecoderBatch:
    """Positions [start, end) of one text whose token i + 1 is `token_ids[i]`."""
    positions = torch.arange(start, end)
    table = torch.tensor([[3, 1, 4]], dtype=torch.int32)
    blocks = table[0, positions // BLOCK_SIZE].long()
    return DecoderBatch(
        token_ids=token_ids[start:end],
        positions=positions,
        slot_mapping=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
        block_tables=table,
        cu_seqlens_q=torch.tensor([0, end - start], dtype=torch.int32),
        seq_lens=torch.tensor([end], dtype=torch.int32),
        logit_rows=torch.tensor([], dtype=torch.int64),
    )


def guessed(made: Made, token_ids: Tensor, hidden: Tensor, cuts: list[int]) -> Tensor:
    """States of the whole text, computed in pieces that end at `cuts`."""
    (kv,) = allocate_kv_cache(made.head.config, 5, BLOCK_SIZE, torch.float32, made.target.impl)
    parts = []
    for start, end in zip([0, *cuts], [*cuts, TOKENS], strict=True):
        parts.append(made.head.forward(rows(token_ids, start, end), hidden[start:end], kv))
    return torch.cat(parts)


def text() -> tuple[Tensor, Tensor]:
    """Tokens at i + 1, and states at i."""
    draw = torch.Generator().manual_seed(3)
    return torch.randint(0, 500, (TOKENS,), generator=draw), torch.randn(TOKENS, 64, generator=draw)


@pytest.mark.parametrize("impl", ["torch", "cpu"])
@pytest.mark.parametrize("kind", ["eagle", "llama", "qwen3", "mimo"])
@torch.inference_mode()
def test_a_head_computes_what_was_trained(tmp_path: Path, kind: str, impl: str) -> None:
    made = make(tmp_path, kind, impl)
    twin, (token_ids, hidden) = made.twin(), text()
    embedded = made.target.shared.embedding[token_ids].float()
    wanted = twin(embedded[None], hidden[None])[0]
    got = guessed(made, token_ids, hidden, [7, 8])
    # As for whole decoders: the rounding of some 20 operations on values of size 10.
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    logits = (
        twin.projected(wanted) @ load_file(tmp_path / "model/model.safetensors")["lm_head.weight"].T
    )
    torch.testing.assert_close(made.head.logits(got), logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("impl", ["torch", "cpu"])
@torch.inference_mode()
def test_keys_and_values_alone_are_those_of_a_whole_pass(tmp_path: Path, impl: str) -> None:
    made, (token_ids, hidden) = make(tmp_path, "llama", impl), text()
    whole = guessed(made, token_ids, hidden, [])
    (kv,) = allocate_kv_cache(made.head.config, 5, BLOCK_SIZE, torch.float32, impl)
    made.head.write_kv(rows(token_ids, 0, 7), hidden[:7], kv)
    made.head.write_kv(rows(token_ids, 7, TOKENS), hidden[7:], kv)
    last = made.head.forward(rows(token_ids, TOKENS - 1, TOKENS), hidden[-1:], kv)
    torch.testing.assert_close(last, whole[-1:], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_tokens_that_a_head_does_not_know_are_never_guessed(tmp_path: Path) -> None:
    made = make(tmp_path, "eagle", num_tokens=100)
    whole = make(tmp_path / "whole", "eagle")
    states = torch.randn(30, 64)
    logits, all_logits = made.head.logits(states), whole.head.logits(states)
    assert logits.shape == all_logits.shape
    torch.testing.assert_close(logits[:, :100], all_logits[:, :100])
    assert bool((logits[:, 100:] == -torch.inf).all())


PUBLISHED_EAGLE = {
    "fc.weight",
    "layers.0.self_attn.q_proj.weight",
    "layers.0.self_attn.k_proj.weight",
    "layers.0.self_attn.v_proj.weight",
    "layers.0.self_attn.o_proj.weight",
    "layers.0.mlp.gate_proj.weight",
    "layers.0.mlp.up_proj.weight",
    "layers.0.mlp.down_proj.weight",
    "layers.0.post_attention_layernorm.weight",
}
"""Of EAGLE-LLaMA3-Instruct-8B, beside embed_tokens.weight."""
PUBLISHED_MTP = {
    "enorm.weight",
    "hnorm.weight",
    "eh_proj.weight",
    "shared_head.norm.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "self_attn.o_proj.weight",
    "mlp.down_proj.weight",
}
"""Of the layer behind the last one of DeepSeek-V3 and GLM-4.5, where attention and MLP are ours."""


def test_heads_are_read_under_the_names_that_checkpoints_have(tmp_path: Path) -> None:
    eagle, mtp = make(tmp_path / "eagle", "eagle"), make(tmp_path / "mtp", "llama")
    assert set(eagle.tensors) == PUBLISHED_EAGLE
    assert {f"model.layers.1.{name}" for name in PUBLISHED_MTP} <= set(mtp.tensors)


def test_copies_of_the_targets_ends_and_a_bias_of_the_projection_are_taken(tmp_path: Path) -> None:
    made = make(tmp_path, "eagle")
    tensors = dict(made.tensors)
    tensors["embed_tokens.weight"] = torch.zeros(made.head.config.vocab_size, 64)
    tensors["fc.bias"] = torch.full((64,), 2.0)
    save_file(tensors, tmp_path / "head" / "model.safetensors")
    biased = Head.load(
        tmp_path / "head",
        made.head.config,
        EAGLE,
        target=made.target,
        target_folder=tmp_path / "model",
        max_positions=64,
    )
    token_ids, hidden = text()
    plain = guessed(made, token_ids, hidden, [])
    made.head = biased
    assert not torch.allclose(guessed(made, token_ids, hidden, []), plain, atol=0.1)


@pytest.mark.parametrize(
    ("change", "reason", "said"),
    [
        ({"hidden_size": 128}, "InvalidSettings", "hidden_size is 128, the served model's is 64"),
        ({"vocab_size": 100}, "InvalidSettings", "vocab_size is 100, the served model's is"),
        ({"num_hidden_layers": 2}, "UnsupportedModel", "a head of 2 decoder layers"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "UnsupportedModel", "EAGLE-3"),
        ({"speculators_model_type": "eagle"}, "UnsupportedModel", "format of speculators"),
    ],
)
def test_a_head_of_another_kind_or_model_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], reason: str, said: str
) -> None:
    model = ONE_LAYER.write(tmp_path / "model")
    config = write_eagle_head(tmp_path / "head", model) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(StartFailed, match=said) as failed:
        eagle_config(tmp_path / "head", load_config(model))
    assert failed.value.reason == reason


def test_a_head_whose_weights_are_not_all_there_is_refused(tmp_path: Path) -> None:
    made = make(tmp_path, "eagle")
    for tensors, said in (
        ({k: v for k, v in made.tensors.items() if k != "fc.weight"}, "fc.weight is missing"),
        ({**made.tensors, "layers.0.input_layernorm.weight": torch.ones(64)}, "input_layernorm"),
        ({**made.tensors, "d2t": torch.full((9,), 10**6)}, "d2t must lead to tokens"),
    ):
        save_file(tensors, tmp_path / "head" / "model.safetensors")
        with pytest.raises(StartFailed, match=said):
            Head.load(
                tmp_path / "head",
                made.head.config,
                EAGLE,
                target=made.target,
                target_folder=tmp_path / "model",
                max_positions=64,
            )


def test_a_model_without_a_layer_for_it_cannot_draft_by_multi_token_prediction(
    tmp_path: Path,
) -> None:
    model = ONE_LAYER.write(tmp_path)
    with pytest.raises(StartFailed, match="num_nextn_predict_layers"):
        refuse_without_mtp(load_config(model), model)
    refuse_without_mtp(load_config(write_mtp_model(tmp_path / "mtp")), model)

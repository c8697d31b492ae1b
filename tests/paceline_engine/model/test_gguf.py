"""A GGUF file becomes the folder that the same model has on a hub."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants
from safetensors import safe_open
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from paceline_engine.core.errors import StartFailed
from paceline_engine.model.gguf import convert_gguf
from paceline_engine.testing.tiny_model import TinyModel, tiny_tokenizer

HUB_TO_GGUF = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in HUB_TO_GGUF:
        return f"{HUB_TO_GGUF[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{HUB_TO_GGUF[part]}.{kind}"


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k of Llama."""
    shape = values.shape
    return (
        values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    )


def write_gguf(
    path: Path,
    folder: Path,
    model: TinyModel,
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    pre: str = "gpt-2",
    tokenizer: str = "gpt2",
    architecture: str | None = None,
) -> Path:
    """Write a tiny model folder as llama.cpp would."""
    writer = GGUFWriter(path, architecture or model.family)
    writer.add_block_count(model.num_layers)
    writer.add_context_length(model.max_position_embeddings)
    writer.add_embedding_length(model.hidden_size)
    writer.add_feed_forward_length(model.intermediate_size)
    writer.add_head_count(model.num_heads)
    writer.add_head_count_kv(model.num_kv_heads)
    writer.add_key_length(model.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    written = json.loads(Tokenizer.from_file(str(folder / "tokenizer.json")).to_str())
    vocab = written["model"]["vocab"]
    writer.add_tokenizer_model(tokenizer)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(sorted(vocab, key=vocab.__getitem__))
    special = {token["id"] for token in written["added_tokens"]}
    kinds = [TokenType.CONTROL if i in special else TokenType.NORMAL for i in range(len(vocab))]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in written["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_chat_template("{{ messages }}")
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor
        if model.family == "llama" and "q_proj" in name:
            values = permuted(tensor, model.num_heads)
        elif model.family == "llama" and "k_proj" in name:
            values = permuted(tensor, model.num_kv_heads)
        if values.ndim == 2 and kind is not GGMLQuantizationType.F32:
            values = quants.quantize(values, kind)
            writer.add_tensor(gguf_name(name), values, raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def convert(file: Path, out: Path) -> Path:
    out.mkdir()
    convert_gguf(file, out, lambda share: None)
    return out


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_full_precision_comes_back_bit_by_bit(family: str, tied: bool, tmp_path: Path) -> None:
    model = TinyModel(family=family, tied=tied, num_layers=1)
    folder = model.write(tmp_path / "hub")
    out = convert(write_gguf(tmp_path / "m.gguf", folder, model), tmp_path / "out")
    before, after = (load_file(each / "model.safetensors") for each in (folder, out))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    wanted, got = (json.loads((each / "config.json").read_text()) for each in (folder, out))
    for name in ("model_type", "head_dim", "rms_norm_eps", "rope_theta", "tie_word_embeddings"):
        assert got[name] == wanted[name], name
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    config = json.loads((out / "tokenizer_config.json").read_text())
    assert (config["eos_token"], config["chat_template"]) == ("<|im_end|>", "{{ messages }}")


def test_quantised_weights_become_the_nearest_bfloat16(tmp_path: Path) -> None:
    model = TinyModel(num_layers=1)
    kind = GGMLQuantizationType.Q8_0
    folder = model.write(tmp_path / "hub")
    out = convert(write_gguf(tmp_path / "m.gguf", folder, model, kind=kind), tmp_path / "out")
    name = "model.layers.0.mlp.up_proj.weight"
    exact = load_file(folder / "model.safetensors")[name]
    expected = quants.dequantize(quants.quantize(exact, kind), kind)
    with safe_open(out / "model.safetensors", framework="pt") as file:
        got = file.get_tensor(name)
    assert torch.equal(got, torch.from_numpy(expected).to(torch.bfloat16))


TEXTS = [
    "Hello, world! 12345 and 1 2 33",
    "½ ② x² ٣ Ⅷ",
    "<|im_start|>user\nWhat's up?<|im_end|>\n",
    "  spaces \t tabs\r\n\n newlines ",
    "漢字 かな 🙂👩‍👩‍👧 é é I'LL we're",
]


def test_text_is_cut_as_by_the_tokenizer_it_came_from(tmp_path: Path) -> None:
    model = TinyModel(num_layers=1)
    folder = model.write(tmp_path / "hub")
    out = convert(write_gguf(tmp_path / "m.gguf", folder, model), tmp_path / "out")
    wanted, got = tiny_tokenizer(), Tokenizer.from_file(str(out / "tokenizer.json"))
    for text in TEXTS:
        ids = got.encode(text).ids
        assert ids == wanted.encode(text).ids
        assert got.decode(ids, skip_special_tokens=False) == text


def test_smollm_cuts_every_digit_off(tmp_path: Path) -> None:
    model = TinyModel(num_layers=1)
    folder = model.write(tmp_path / "hub")
    file = write_gguf(tmp_path / "m.gguf", folder, model, pre="smollm")
    tokenizer = Tokenizer.from_file(str(convert(file, tmp_path / "out") / "tokenizer.json"))
    cut = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("a 123")]
    assert cut == ["a", "Ġ", "1", "2", "3"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"pre": "strange"}, "strange"),
        ({"tokenizer": "llama"}, "tokenizer.ggml.model"),
        ({"architecture": "mamba"}, "mamba"),
    ],
)
def test_what_is_not_built_is_refused_by_name(
    words: dict[str, str], named: str, tmp_path: Path
) -> None:
    model = TinyModel(num_layers=1)
    folder = model.write(tmp_path / "hub")
    file = write_gguf(tmp_path / "m.gguf", folder, model, **words)
    with pytest.raises(StartFailed, match=named) as refused:
        convert(file, tmp_path / "out")
    assert refused.value.reason == "UnsupportedModel"


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"something else entirely, but long enough to look at")
    with pytest.raises(StartFailed, match="not readable as GGUF"):
        convert(file, tmp_path / "out")


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    model = TinyModel(hidden_size=16, num_layers=1, head_dim=8, num_heads=2, num_kv_heads=1)
    whole = write_gguf(tmp_path / "m.gguf", model.write(tmp_path / "hub"), model).read_bytes()
    cut = tmp_path / "cut.gguf"
    for place, size in enumerate([0, 4, 23, 30, 100, 3_000, len(whole) // 2, len(whole) - 40]):
        cut.write_bytes(whole[:size])
        with pytest.raises(StartFailed) as refused:
            convert(cut, tmp_path / str(place))
        assert refused.value.reason == "UnsupportedModel"

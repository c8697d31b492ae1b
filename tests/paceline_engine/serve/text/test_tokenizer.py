import asyncio
import json
import time
from pathlib import Path

import pytest

from paceline_engine.core.errors import StartFailed
from paceline_engine.serve.text.detokenizer import decode
from paceline_engine.serve.text.tokenizer import TextTokenizer
from paceline_engine.testing.imports import imported_by


def test_long_texts_are_encoded_beside_the_event_loop_and_alike(tiny_folder: Path) -> None:
    tokenizer = TextTokenizer.load(tiny_folder)
    text = "the river and the bridge 日本 " * 400
    apart = asyncio.run(tokenizer.encode_apart(text, add_special_tokens=False))
    assert apart == tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.tokenizer.decode(apart) == text


def test_the_event_loop_goes_on_while_a_long_text_is_encoded(tiny_folder: Path) -> None:
    tokenizer = TextTokenizer.load(tiny_folder)

    async def longest_stop() -> tuple[float, float]:
        started = last = time.monotonic()
        longest = 0.0
        encoding = asyncio.create_task(
            tokenizer.encode_apart("the river " * 15_000, add_special_tokens=False)
        )
        while not encoding.done():
            await asyncio.sleep(0)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        return longest, last - started

    longest_s, whole_s = asyncio.run(longest_stop())
    assert longest_s < whole_s / 2


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(StartFailed, match=r"tokenizer\.json") as caught:
        TextTokenizer.load(tmp_path)
    assert caught.value.reason == "UnsupportedModel"


@pytest.mark.slow
def test_the_border_imports_neither_torch_nor_transformers() -> None:
    border = "paceline_engine.serve.openai.app"
    assert imported_by(border, watched=("torch", "transformers")) == set()


@pytest.mark.slow
def test_a_folder_without_tokenizer_json_is_converted_if_that_is_possible(
    tiny_folder: Path, tmp_path: Path
) -> None:
    model = json.loads((tiny_folder / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "model_type": "gpt2"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    tokenizer = TextTokenizer.load(tmp_path)
    text = "the river 日本"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == TextTokenizer.load(tiny_folder).encode(text, add_special_tokens=False)
    assert decode(tokenizer.vocabulary, ids, skip_special_tokens=True) == text


@pytest.mark.full
def test_a_folder_with_no_tokenizer_at_all_says_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"add a tokenizer\.json") as caught:
        TextTokenizer.load(tmp_path)
    assert caught.value.reason == "UnsupportedModel"

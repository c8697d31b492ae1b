import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline_engine.core.errors import StartFailed
from paceline_engine.serve.tokenizer import TextTokenizer


def test_long_texts_are_encoded_beside_the_event_loop_and_alike(tiny_folder: Path) -> None:
    tokenizer = TextTokenizer.load(tiny_folder)
    text = "the river and the bridge 日本 " * 400
    apart = asyncio.run(tokenizer.encode_apart(text, add_special_tokens=False))
    assert apart == tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.tokenizer.decode(apart) == text


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(StartFailed, match=r"tokenizer\.json") as caught:
        TextTokenizer.load(tmp_path)
    assert caught.value.reason == "UnsupportedModel"


@pytest.mark.slow
def test_the_border_imports_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, paceline_engine.serve.app\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"

"""The model's tokenizer: text to ids, and the vocabulary for the way back."""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from paceline_engine.core.errors import StartFailed
from paceline_engine.serve.text.vocabulary import Vocabulary

# Encoding takes about a microsecond per four characters; below this length a thread costs more
# than it saves.
_INLINE_CHARACTERS = 4096

_CONVERTER = """
import sys
from transformers import AutoTokenizer
AutoTokenizer.from_pretrained(sys.argv[1]).backend_tokenizer.save(sys.argv[2])
"""


class TextTokenizer:
    """Encodes text as the model's tokenizer does.

    Attributes:
        tokenizer: of the tokenizers library, without truncation or padding.
        vocabulary: bytes of its tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary(tokenizer)

    @classmethod
    def load(cls, model_dir: Path) -> "TextTokenizer":
        """Read the tokenizer of a model folder.

        Raises:
            StartFailed: UnsupportedModel, no tokenizer can be made from the folder.
        """
        path = model_dir / "tokenizer.json"
        if path.is_file():
            try:
                return cls(Tokenizer.from_file(str(path)))
            except Exception as error:
                raise StartFailed(
                    "UnsupportedModel", f"cannot read the tokenizer {path}: {error}"
                ) from error
        return cls(_convert(model_dir))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a text."""
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    async def encode_apart(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a text; a long one is encoded beside the event loop."""
        if len(text) <= _INLINE_CHARACTERS:
            return self.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self._encode_unlocked, text, add_special_tokens)

    def _encode_unlocked(self, text: str, add_special_tokens: bool) -> list[int]:
        """As `encode`; only the calls for batches release the interpreter's lock meanwhile."""
        batch = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(batch[0].ids)


def _convert(model_dir: Path) -> Tokenizer:
    """A folder without tokenizer.json: transformers can convert the common older formats.

    In a process of its own, because transformers may import torch, which this process never does.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "tokenizer.json"
        command = [sys.executable, "-P", "-c", _CONVERTER, str(model_dir), str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
        if done.returncode == 0:
            return Tokenizer.from_file(str(made))
    reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
    raise StartFailed(
        "UnsupportedModel",
        f"{model_dir} has no tokenizer.json, and its tokenizer cannot be converted: {reason[0]}; "
        "add a tokenizer.json to the model folder",
    )

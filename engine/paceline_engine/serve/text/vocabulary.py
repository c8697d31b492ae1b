"""What each token is, in bytes: the ground that incremental text stands on.

The decoders of the served families (byte-level BPE; sentencepiece with byte fallback) give every
token its bytes without looking at its neighbours, so text can be made token by token in constant
time and is exactly the text that decoding everything at once gives. Any other decoder is handled
by windows (`detokenizer.WindowedText`).
"""

import json
import re
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """The printable stand-ins of GPT-2's byte-level BPE: character -> byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if byte not in set(plain))
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_level_alphabet()


class Vocabulary:
    """Bytes of tokens, looked up once per token and kept.

    Attributes:
        is_local: every token's bytes are the same whatever stands beside it.
        strip_start: spaces that a text loses at its very start (`Strip` of sentencepiece models).
        drops_first_space: the first token of a text loses its word-start marks (`Metaspace`).
        special_ids: tokens that `skip_special_tokens` leaves out.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.is_local = False
        self.strip_start = 0
        self.drops_first_space = False
        self._is_byte_level = False
        self._has_byte_fallback = False
        self._replacements: list[tuple[str, str]] = []
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}
        self._read_decoder()

    def bytes_of(self, token_id: int) -> bytes:
        """The token's bytes; empty for an id that the vocabulary lacks."""
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._look_up(token_id)
        return data

    def text_of(self, token_id: int) -> str | None:
        """The token's text if its bytes are whole characters, else None."""
        try:
            return self._texts[token_id]
        except KeyError:
            pass
        try:
            text: str | None = self.bytes_of(token_id).decode()
        except UnicodeDecodeError:
            text = None
        self._texts[token_id] = text
        return text

    def name_of(self, token_id: int) -> str:
        r"""A name for people and for `tokens` lists.

        Bytes that are no characters by themselves are written as OpenAI writes them
        (`bytes:\xe2\x82`), so that two such tokens never look alike.
        """
        text = self.text_of(token_id)
        if text is not None:
            return text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.bytes_of(token_id))

    def _look_up(self, token_id: int) -> bytes:
        token = self.tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            try:
                return bytes([_ALPHABET[char] for char in token])
            except KeyError:
                return token.encode()
        if not self.is_local:
            return self.tokenizer.decode([token_id], skip_special_tokens=False).encode()
        for old, new in self._replacements:
            token = token.replace(old, new)
        if self._has_byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.encode()

    def _read_decoder(self) -> None:
        decoder = self.tokenizer.decoder
        if decoder is None:
            return
        spec: dict[str, Any] = json.loads(decoder.__getstate__())
        parts = spec["decoders"] if spec["type"] == "Sequence" else [spec]
        if [part["type"] for part in parts] == ["ByteLevel"]:
            self._is_byte_level = self.is_local = True
            return
        # Every part is read, also behind one that is not local.
        self.is_local = all(list(map(self._read_part, parts)))

    def _read_part(self, part: dict[str, Any]) -> bool:
        """Take in one decoder of a chain; False if its effect is not local to a token."""
        kind = part["type"]
        if kind == "Replace":
            pattern = part["pattern"].get("String")
            if pattern is None or len(pattern) != 1:
                return False
            self._replacements.append((pattern, part["content"]))
            return True
        if kind == "Metaspace":
            self._replacements.append((part["replacement"], " "))
            self.drops_first_space = part.get("prepend_scheme", "always") != "never"
            return True
        if kind == "ByteFallback":
            self._has_byte_fallback = True
            return True
        if kind == "Strip":
            self.strip_start = part["start"]
            return bool(part["stop"] == 0 and part["content"] == " ")
        return bool(kind == "Fuse")

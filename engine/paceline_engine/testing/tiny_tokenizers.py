"""Tiny tokenizers of the other kinds that models have, for tests of text.

`tiny_model.tiny_tokenizer` is the byte-level one.
"""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_MARK = "▁"
_WORDS = [
    "<unk>",
    "<s>",
    "</s>",
    _MARK,
    "Hello",
    f"{_MARK}world",
    f"{_MARK}the",
    "é",
    "日",
    "a",
    "b",
]


def byte_fallback_tokenizer() -> Tokenizer:
    """As sentencepiece BPE models are converted: marks for spaces, bytes for unknown characters."""
    vocabulary = {word: i for i, word in enumerate(_WORDS)}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))  # noqa: S106
    tokenizer.add_special_tokens(_WORDS[:3])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(_MARK, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def metaspace_tokenizer() -> Tokenizer:
    """As sentencepiece unigram models are converted."""
    tokenizer = Tokenizer(models.Unigram([(word, -1.0) for word in _WORDS], unk_id=0))
    tokenizer.add_special_tokens(_WORDS[:3])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_MARK)
    tokenizer.decoder = decoders.Metaspace(replacement=_MARK)
    return tokenizer


def word_piece_tokenizer() -> Tokenizer:
    """A decoder that looks at neighbours: continuation pieces, clean-up before punctuation."""
    words = ["[UNK]", "play", "##ing", "##ed", "the", "end", ".", ",", "!"]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer

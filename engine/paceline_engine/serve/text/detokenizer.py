"""Text from tokens, as they come: nothing is held back without need and nothing is lost.

Two stages. `LocalText` (or `WindowedText`) turns tokens into characters: a character that is split
over tokens appears with the token that completes it. `StopMatcher` looks for stop strings in those
characters: only what may be the beginning of a stop string is held, exactly as long as it may.
Both work in amortised constant time per token, and what they give does not depend on how tokens
were grouped on their way here.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

from paceline_engine.serve.text.vocabulary import Vocabulary


class IncrementalText(Protocol):
    """Characters of a growing token sequence."""

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        ...

    def flush(self) -> str:
        """What is still held at the end, e.g. U+FFFD for an unfinished character."""
        ...


class LocalText:
    """Text of tokens whose bytes do not depend on their neighbours.

    Invalid UTF-8 becomes U+FFFD by the Unicode practice of maximal subparts, as in the tokenizers
    library. One difference is on purpose: sentencepiece's byte fallback would turn a whole run of
    byte tokens into U+FFFD when any byte in it is wrong, which cannot be known while it streams;
    here only the wrong bytes do.

    Args:
        vocabulary: of the model.
        skip_special_tokens: special tokens give no text.
        at_start: no text stands before the first token, so the leading space that sentencepiece
            models put there is dropped. False for outputs: a prompt stands before them.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, skip_special_tokens: bool = True, at_start: bool = False
    ) -> None:
        self._vocabulary = vocabulary
        self._skip = vocabulary.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_inside_character = False
        self._strip = vocabulary.strip_start if at_start else 0
        self._drop_first = at_start and vocabulary.drops_first_space

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        if token_id in self._skip:
            return ""
        if self._strip or self._drop_first:
            return self._push_at_start(token_id)
        if not self._is_inside_character:
            text = self._vocabulary.text_of(token_id)
            if text is not None:
                return text
        return self._decode(self._vocabulary.bytes_of(token_id))

    def flush(self) -> str:
        """U+FFFD for a character that no token completed, else nothing."""
        self._is_inside_character = False
        return self._utf8.decode(b"", final=True)

    def _decode(self, data: bytes) -> str:
        text = self._utf8.decode(data)
        self._is_inside_character = bool(self._utf8.getstate()[0])
        return text

    def _push_at_start(self, token_id: int) -> str:
        data = self._vocabulary.bytes_of(token_id)
        if self._drop_first:
            # Metaspace looks at the first visible token only and drops all of its marks.
            self._drop_first = False
            token = self._vocabulary.tokenizer.id_to_token(token_id)
            data = data.replace(b" ", b"") if token is not None and " " not in token else data
        while self._strip and data.startswith(b" "):
            data = data[1:]
            self._strip -= 1
        if data:
            self._strip = 0
        return self._decode(data)


class WindowedText:
    """Text through a decoder that looks at neighbours: decodes a short window again and again.

    The window starts at the last place where text was given out. It is given out when its end is no
    unfinished character, or after `_MAX_HELD` tokens, so a real U+FFFD does not hold the rest back.
    """

    _MAX_HELD = 8

    def __init__(
        self, vocabulary: Vocabulary, *, skip_special_tokens: bool = True, at_start: bool = False
    ) -> None:
        self._tokenizer = vocabulary.tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._given: list[int] = []
        self._held: list[int] = []
        del at_start  # the decoder's own business

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        self._held.append(token_id)
        text = self._new_text()
        if text.endswith("�") and len(self._held) < self._MAX_HELD:
            return ""
        return self._give(text)

    def flush(self) -> str:
        """What the window still holds."""
        return self._give(self._new_text()) if self._held else ""

    def _give(self, text: str) -> str:
        self._given, self._held = self._held, []
        return text

    def _new_text(self) -> str:
        before = self._decode(self._given)
        return self._decode(self._given + self._held)[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)


def incremental_text(
    vocabulary: Vocabulary, *, skip_special_tokens: bool = True, at_start: bool = False
) -> IncrementalText:
    """The right kind of incremental text for this vocabulary."""
    kind = LocalText if vocabulary.is_local else WindowedText
    return kind(vocabulary, skip_special_tokens=skip_special_tokens, at_start=at_start)


def decode(vocabulary: Vocabulary, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    """All tokens at once, with nothing before them."""
    text = incremental_text(vocabulary, skip_special_tokens=skip_special_tokens, at_start=True)
    return "".join([text.push(token_id) for token_id in token_ids]) + text.flush()


def _failure_table(pattern: str) -> list[int]:
    """Knuth-Morris-Pratt: table[k] = longest proper border of pattern[:k]."""
    table = [0] * (len(pattern) + 1)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = table[length]
        if pattern[i] == pattern[length]:
            length += 1
        table[i + 1] = length
    return table


class StopMatcher:
    """Finds the first stop string in text that arrives in pieces.

    The stop that counts is the one that is complete first; of two that end at the same character,
    the longer one. The result is the same for every division of the text into pieces.

    Args:
        stops: non-empty strings.
        include: the stop string itself belongs to the text, so nothing ever needs to be held.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        # Longest first: the first match at a character is the longest.
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._tables = [_failure_table(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._first_characters = {stop[0] for stop in self._stops}
        self._include = include
        self._held = ""

    @property
    def is_empty(self) -> bool:
        """There is nothing to look for."""
        return not self._stops

    def push(self, text: str, *, is_active: bool = True) -> tuple[str, str | None]:
        """Take a piece of text.

        Args:
            text: the next characters.
            is_active: a stop that is completed inside this piece ends the text; if not, it is
                ordinary text (fewer than `min_tokens` tokens so far).

        Returns:
            Text that may be given out now, and the stop string if one was completed: then this is
            the last text.
        """
        if not self._stops:
            return text, None
        if not self._held and not any(self._matched) and self._first_characters.isdisjoint(text):
            return text, None
        for i, char in enumerate(text):
            stop = self._advance(char)
            if stop is not None and is_active:
                whole = self._held + text[: i + 1]
                self._held = ""
                return whole if self._include else whole[: len(whole) - len(stop)], stop
        if self._include:
            return text, None
        whole = self._held + text
        keep = len(whole) - max(self._matched)
        self._held = whole[keep:]
        return whole[:keep], None

    def flush(self) -> str:
        """Held text, when no more will come."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        """Move every pattern by one character; the longest one that is complete now, if any."""
        found = None
        for i, (stop, table) in enumerate(zip(self._stops, self._tables, strict=True)):
            length = self._matched[i]
            while length and stop[length] != char:
                length = table[length]
            if stop[length] == char:
                length += 1
            if length == len(stop):
                found = found or stop
                length = table[length]
            self._matched[i] = length
        return found

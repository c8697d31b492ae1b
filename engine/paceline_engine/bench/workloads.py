"""Workloads: what is asked of a server, and when. Deterministic by seed.

Prompts are token ids. With a tokenizer they are ordinary words that are one token each, so that
the same prompt can be sent as text; without one they are random ids (no text).
"""

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_WORD_MARKS = ("\u0120", "\u2581")  # byte-level BPE and SentencePiece write a space like this
_MAX_WORDS = 8000
_RANDOM_IDS = (1_000, 9_000)  # inside the vocabulary of every common model, above its specials


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One request.

    Attributes:
        group: part of the workload that is reported on its own ("steady", "big").
        prompt: the same prompt as text, empty without a tokenizer.
        max_tokens: output tokens; the client asks for exactly so many.
        arrival_s: when it arrives: seconds for a schedule, a process of unit rate for Poisson.
    """

    group: str
    prompt_token_ids: tuple[int, ...]
    prompt: str
    max_tokens: int
    arrival_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A named list of requests in order of arrival."""

    name: str
    seed: int
    items: tuple[WorkItem, ...]

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(len(item.prompt_token_ids) for item in self.items)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens of all requests."""
        return sum(item.max_tokens for item in self.items)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What prompts are made of: (text, token id), text empty where only ids are known."""

    words: tuple[tuple[str, int], ...]

    @classmethod
    def random_ids(cls, low: int = _RANDOM_IDS[0], high: int = _RANDOM_IDS[1]) -> "Vocabulary":
        """Token ids [low, high) without text."""
        return cls(tuple(("", token_id) for token_id in range(low, high)))

    @classmethod
    def from_tokenizer(cls, path: Path) -> "Vocabulary":
        """Lower-case English-looking words that are one token with their leading space.

        Args:
            path: a tokenizer.json, or the folder that holds one.

        Raises:
            ValueError: no such file, or a vocabulary without such words.
        """
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            model = json.loads(file.read_text(encoding="utf-8"))["model"]
            pieces = _pieces(model["vocab"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} must be a tokenizer.json, got {error!r}") from error
        words = [
            (" " + piece[1:], token_id)
            for piece, token_id in pieces
            if piece[:1] in _WORD_MARKS and _is_plain_word(piece[1:])
        ]
        if len(words) < 100:
            raise ValueError(
                f"{file} has {len(words)} plain words of one token, need 100; leave the tokenizer "
                "out to use random token ids"
            )
        words.sort(key=lambda word: word[1])
        return cls(tuple(words[:_MAX_WORDS]))

    def prompt(self, rng: random.Random, length: int) -> tuple[str, tuple[int, ...]]:
        """`length` random words: as text, and as ids."""
        picked = [rng.choice(self.words) for _ in range(length)]
        return "".join(text for text, _ in picked), tuple(token_id for _, token_id in picked)

    def item(
        self, rng: random.Random, group: str, length: int, max_tokens: int, arrival_s: float = 0.0
    ) -> WorkItem:
        """One request with a random prompt of `length` tokens."""
        prompt, ids = self.prompt(rng, length)
        return WorkItem(
            group=group,
            prompt_token_ids=ids,
            prompt=prompt,
            max_tokens=max_tokens,
            arrival_s=arrival_s,
        )


def _pieces(vocab: object) -> list[tuple[str, int]]:
    if isinstance(vocab, dict):
        return [(str(piece), int(token_id)) for piece, token_id in vocab.items()]
    if isinstance(vocab, list):  # Unigram: [[piece, score], ...], the id is the index
        return [(str(entry[0]), token_id) for token_id, entry in enumerate(vocab)]
    raise TypeError(f"vocabulary must be a map or a list, got {type(vocab).__name__}")


def _is_plain_word(text: str) -> bool:
    return text.isascii() and text.isalpha() and text.islower() and 3 <= len(text) <= 10


def _lognormal(rng: random.Random, median: float, sigma: float, low: int, high: int) -> int:
    return max(low, min(high, round(math.exp(rng.gauss(math.log(median), sigma)))))


def _unit_poisson(rng: random.Random, count: int) -> list[float]:
    now, arrivals = 0.0, []
    for _ in range(count):
        arrivals.append(round(now, 6))
        now += rng.expovariate(1.0)
    return arrivals


def _mixed(rng: random.Random, vocabulary: Vocabulary, count: int = 64) -> list[WorkItem]:
    arrivals = _unit_poisson(rng, count)
    items = []
    for arrival_s in arrivals:
        length = _lognormal(rng, 200, 0.9, 8, 1500)
        max_tokens = _lognormal(rng, 50, 1.0, 4, 400)
        items.append(vocabulary.item(rng, "mixed", length, max_tokens, arrival_s))
    return items


def _single(rng: random.Random, vocabulary: Vocabulary) -> list[WorkItem]:
    return [vocabulary.item(rng, "single", 64, 256)]


def _decode16(rng: random.Random, vocabulary: Vocabulary) -> list[WorkItem]:
    return [vocabulary.item(rng, "decode16", 32, 128) for _ in range(16)]


def _prefill16(rng: random.Random, vocabulary: Vocabulary) -> list[WorkItem]:
    return [vocabulary.item(rng, "prefill16", 512, 1) for _ in range(16)]


def _interference(rng: random.Random, vocabulary: Vocabulary) -> list[WorkItem]:
    steady = [vocabulary.item(rng, "steady", 32, 400) for _ in range(16)]
    return steady + [vocabulary.item(rng, "big", 1500, 8, 3.0 + 3.0 * k) for k in range(6)]


def _steady_only(rng: random.Random, vocabulary: Vocabulary) -> list[WorkItem]:
    return [item for item in _interference(rng, vocabulary) if item.group == "steady"]


def _shared_prefix(rng: random.Random, vocabulary: Vocabulary) -> list[WorkItem]:
    text, ids = vocabulary.prompt(rng, 800)
    items = []
    for arrival_s in _unit_poisson(rng, 48):
        length = _lognormal(rng, 40, 0.6, 8, 150)
        max_tokens = _lognormal(rng, 40, 0.6, 8, 150)
        own = vocabulary.item(rng, "shared", length, max_tokens, arrival_s)
        items.append(
            replace(own, prompt=text + own.prompt, prompt_token_ids=ids + own.prompt_token_ids)
        )
    return items


def _heavy_tail(rng: random.Random, vocabulary: Vocabulary) -> list[WorkItem]:
    """One long answer among 31 short ones, 24 times: what static batching is worst at."""
    items = []
    for _ in range(24):
        batch = [vocabulary.item(rng, "short", 16, 4) for _ in range(31)]
        batch.insert(rng.randrange(32), vocabulary.item(rng, "long", 16, 384))
        items += batch
    return items


_MAKERS: dict[str, tuple[int, Callable[[random.Random, Vocabulary], list[WorkItem]]]] = {
    "mixed": (0, _mixed),
    "interference": (1, _interference),
    "steady_only": (1, _steady_only),  # the same steady requests as in `interference`
    "shared_prefix": (2, _shared_prefix),
    "single": (3, _single),
    "decode16": (4, _decode16),
    "prefill16": (5, _prefill16),
    "heavy_tail": (6, _heavy_tail),
}

NAMES: tuple[str, ...] = tuple(_MAKERS)


def make(name: str, vocabulary: Vocabulary, *, seed: int = 1234) -> Workload:
    """The workload of that name.

    Raises:
        ValueError: no workload has that name.
    """
    if name not in _MAKERS:
        raise ValueError(f"workload must be one of {', '.join(NAMES)}, got {name!r}")
    offset, maker = _MAKERS[name]
    rng = random.Random(seed + offset)  # noqa: S311 - a workload, not a secret
    return Workload(name=name, seed=seed, items=tuple(maker(rng, vocabulary)))


def with_steady_tokens(workload: Workload, max_tokens: int) -> Workload:
    """The same workload with so many output tokens for each request of group "steady"."""
    items = tuple(
        replace(item, max_tokens=max_tokens) if item.group == "steady" else item
        for item in workload.items
    )
    return replace(workload, items=items)


def steps(lengths: Sequence[int], slots: int, *, is_static: bool) -> int:
    """Decode steps that answers of these lengths take with `slots` places, in this order.

    Static batching waits for the longest of each batch; continuous batching fills a place as soon
    as it is free. The quotient of the two is the ceiling of what continuous batching can gain.
    """
    if is_static:
        return sum(max(lengths[at : at + slots]) for at in range(0, len(lengths), slots))
    free_at = [0] * slots
    for length in lengths:
        place = free_at.index(min(free_at))
        free_at[place] += length
    return max(free_at)


def ceiling(lengths: Sequence[int], slots: int) -> float:
    """The most that continuous batching can gain over static batching, by steps."""
    return steps(lengths, slots, is_static=True) / steps(lengths, slots, is_static=False)

"""Prompts as text: forty of many kinds, and endless ones that repeat themselves or do not."""

import random
from collections.abc import Callable

_PARAGRAPH = (
    "Continuous batching lets a request join the batch at any step. A request that ends leaves its "
    "place to the next one at once, so that the device never waits for the longest answer. "
)


_NAMES = [
    "Ada",
    "Bo",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gita",
    "Hugo",
    "Ines",
    "Jack",
    "Kaya",
    "Leo",
    "Mona",
    "Nils",
    "Olga",
    "Paul",
]
_CITIES = [
    "Rome",
    "Oslo",
    "Lima",
    "Cairo",
    "Delhi",
    "Paris",
    "Quito",
    "Seoul",
    "Tunis",
    "Vienna",
    "Zagreb",
    "Berlin",
]
_THINGS = [
    "a lighthouse",
    "rivers",
    "the first computers",
    "bread",
    "winter",
    "chess",
    "volcanoes",
    "an old piano",
    "tides",
    "gardens",
    "a lost letter",
    "bridges",
    "honey bees",
    "deserts",
    "the moon",
    "maps",
    "trains",
    "a clock that stopped",
    "glass",
    "islands",
    "wool",
    "thunder",
    "coffee",
    "a small bookshop",
]
_ASKED = (
    "Write a short story about {} and {}.",
    "Explain to a child what {} and {} have in common.",
    "Give your opinion on {}, compared with {}.",
    "Describe a day with {} and {} in your own words.",
    "Write a letter to a friend about {} and {}.",
)


def free_prompts(rng: random.Random, count: int) -> list[str]:
    """Questions whose answers go their own way, in the form of the demo model's chats."""
    return [chat(rng.choice(_ASKED).format(*rng.sample(_THINGS, 2))) for _ in range(count)]


def repetitive_prompts(rng: random.Random, count: int) -> list[str]:
    """Records, rows and code whose next lines look like those before."""
    return [rng.choice(_LISTINGS)(rng) for _ in range(count)]


def _records(rng: random.Random) -> str:
    return "".join(
        f'{{"id": {number}, "name": "{rng.choice(_NAMES)}", "city": "{rng.choice(_CITIES)}"}}\n'
        for number in range(1, 5)
    )


def _rows(rng: random.Random) -> str:
    cells = [
        f"<tr><td>{rng.choice(_NAMES)}</td><td>{rng.choice(_CITIES)}</td></tr>\n" for _ in "123"
    ]
    return "<table>\n" + "".join(cells)


def _asserts(rng: random.Random) -> str:
    name = rng.choice(_NAMES).lower()
    return "".join(
        f'    assert {name}({n}, {n + 1}) == {n * (n + 1)}, "{name} of {n}"\n' for n in range(1, 5)
    )


def _refrain(rng: random.Random) -> str:
    name, city = rng.choice(_NAMES), rng.choice(_CITIES)
    return f"{name} went to {city}, and came back to {city}, and said: I saw the sea.\n" * 3


_LISTINGS: tuple[Callable[[random.Random], str], ...] = (_records, _rows, _asserts, _refrain)


def chat(question: str) -> str:
    """A question to the demo model, with its system prompt."""
    return (
        f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{question}"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def varied_prompts() -> list[str]:
    """Forty texts, always the same."""
    short = [
        "The capital of France is",
        "Once upon a time",
        "a",
        "2 + 2 =",
        "def fibonacci(n):\n",
        "SELECT name FROM users WHERE",
        "The quick brown fox jumps over the lazy dog. The quick brown fox",
        "ABC ABC ABC ABC ABC ABC",
        "In 1969, Apollo 11",
        "1 2 3 5 8 13 21",
        "Dear Sir or Madam,\n\nI am writing to",
        "Q: What is photosynthesis?\nA:",
        "Ingredients:\n- 200 g flour\n- 2 eggs\n",
        "Je m'appelle",
        "Der Zug nach München fährt um",
        "日本の首都は",
        "Привет, как",
        "🙂🙃🙂🙃 emoji are",
        "½ ② ③ fractions and circled digits",
        "{'name': 'Ada', 'age': 36, 'city':",
        "<html><body><h1>",
        "WARNING: do not",
        "\n\n\n",
        "    return self._value\n\n    def",
        "The first ten primes are 2, 3, 5, 7, 11, 13, 17, 19, 23 and",
        'She said: "I will never',
        "https://example.com/path?query=",
        "E = mc^2 means that",
        "To be, or not to be, that is",
        "Water boils at 100 degrees",
    ]
    chats = [
        chat(question)
        for question in (
            "What is the capital of Italy?",
            "Write a haiku about rain.",
            "List three uses of a hammer.",
            "Explain gravity to a child.",
            "Translate 'good morning' to Spanish.",
        )
    ]
    long = [_PARAGRAPH * times + "In short," for times in (1, 2, 4, 6, 8)]
    return short + chats + long

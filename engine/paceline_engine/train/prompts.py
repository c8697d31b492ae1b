"""Prompts whose answers a head learns from.

Nothing of the benchmark's prompts is among them, neither topic nor name nor wording (the chat form
of the demo model aside), so that acceptance measured there is acceptance on text never seen.
"""

import random
from collections.abc import Callable

from paceline_engine.bench.prompts import chat

TOPICS = (
    "the sea",
    "a red bicycle",
    "ants",
    "clouds",
    "the violin",
    "paper",
    "an empty train station",
    "earthquakes",
    "painting",
    "soap",
    "the invention of the wheel",
    "photosynthesis",
    "lemons",
    "a school trip",
    "the number zero",
    "whales",
    "electricity",
    "football",
    "old castles",
    "rain",
    "a broken radio",
    "tea",
    "the Roman Empire",
    "vaccines",
    "mirrors",
    "cats",
    "space travel",
    "salt",
    "a market in the morning",
    "democracy",
    "tomatoes",
    "sleep",
    "robots",
    "the color blue",
    "mountains",
    "a hidden door",
    "shoes",
    "fractions",
    "birds",
    "the printing press",
    "money",
    "snow",
    "a grandmother's recipe",
    "solar panels",
    "libraries",
    "dragons",
    "oil",
    "teamwork",
    "the human heart",
    "a long walk",
    "dinosaurs",
    "climate",
    "cheese",
    "friendship",
    "wind",
    "the internet",
    "horses",
    "a ship in a storm",
    "mathematics",
    "dreams",
)
QUESTIONS = (
    "What is {}?",
    "Tell me something interesting about {}.",
    "Write a poem about {}.",
    "Why does {} matter?",
    "Summarize what people should know about {}.",
    "Give me five facts about {}.",
    "How would you teach somebody about {}?",
    "What are the advantages and disadvantages of {}?",
    "Invent a dialogue between two friends who argue about {}.",
    "Write the first paragraph of a novel in which {} plays a part.",
    "Make a list of ideas for an essay on {}.",
    "What is the history of {}?",
    "Write an email to a teacher that asks about {}.",
    "Which questions about {} are still open?",
    "Imagine the world without {}. What would change?",
    "Write a speech about {} and {}.",
    "How is {} connected with {}?",
    "Tell a bedtime story in which {} and {} appear.",
)
_PEOPLE = ("Rosa", "Tim", "Yuki", "Omar", "Lena", "Igor", "Mara", "Sven", "Abel", "Nora", "Zoe")
_PLACES = ("Madrid", "Tokyo", "Boston", "Prague", "Accra", "Porto", "Sydney", "Bergen", "Havana")
_GOODS = ("apples", "nails", "lamps", "books", "ropes", "plates", "chairs", "stamps", "candles")


def training_prompts(seed: int, count: int) -> list[str]:
    """As many texts, the same for a seed: two of three are questions, the rest listings."""
    rng = random.Random(seed)  # noqa: S311 - data, not a secret
    return [
        rng.choice(_LISTINGS)(rng) if number % 3 == 2 else _question(rng) for number in range(count)
    ]


def _question(rng: random.Random) -> str:
    return chat(rng.choice(QUESTIONS).format(*rng.sample(TOPICS, 2)))


def _orders(rng: random.Random) -> str:
    lines = [
        f"- {rng.choice(_PEOPLE)} ordered {rng.randint(2, 40)} {rng.choice(_GOODS)} from "
        f"{rng.choice(_PLACES)}.\n"
        for _ in "1234"
    ]
    return "".join(lines)


def _table(rng: random.Random) -> str:
    lines = [
        f"| {rng.choice(_PEOPLE)} | {rng.choice(_PLACES)} | {rng.randint(18, 90)} |\n"
        for _ in "123"
    ]
    return "| name | place | age |\n|---|---|---|\n" + "".join(lines)


def _settings(rng: random.Random) -> str:
    lines = [
        f"{rng.choice(_GOODS)}:\n  owner: {rng.choice(_PEOPLE)}\n  count: {rng.randint(1, 99)}\n"
        for _ in "123"
    ]
    return "".join(lines)


def _functions(rng: random.Random) -> str:
    names = rng.sample(_GOODS, 3)
    return "".join(
        f"def count_{name}(items):\n    return sum(item.kind == '{name}' for item in items)\n\n\n"
        for name in names
    )


def _calls(rng: random.Random) -> str:
    person = rng.choice(_PEOPLE)
    return "".join(
        f'print("{person} has", {number}, "{rng.choice(_GOODS)}")\n' for number in range(3, 7)
    )


_LISTINGS: tuple[Callable[[random.Random], str], ...] = (
    _orders,
    _table,
    _settings,
    _functions,
    _calls,
)

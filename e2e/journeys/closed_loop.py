"""Users of whom each waits for an answer before asking again: run in the cluster's network.

`closed_loop.py URL USERS WORDS PROMPT LENGTHS STOP REPORT`. Answers have the LENGTHS in turn
(`4,110`), whoever asks: long ones behind short ones are more than admission expects, so that a
small cache gets full. Prompts are PROMPT tokens that no other request has, and answers are drawn
from WORDS tokens: of one, every draft holds; of many, hardly any does. It asks until the file STOP
is there; REPORT shows how it stands.
"""

import asyncio
import contextlib
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

VOCABULARY = range(100, 40_000)


@dataclass(frozen=True)
class Shape:
    """What requests are like.

    Attributes:
        words: tokens that answers are drawn from.
        prompt: tokens of a prompt.
        lengths: tokens of the next answers, without end; all users take from it.
    """

    words: list[int]
    prompt: int
    lengths: Iterator[int]


async def user(
    number: int, url: str, shape: Shape, http: aiohttp.ClientSession, told: Counter[str]
) -> None:
    """One user, for ever."""
    chance = random.Random(number)
    for turn in itertools.count():
        body = {
            "model": "demo",
            "prompt": chance.choices(VOCABULARY, k=shape.prompt),
            "max_tokens": next(shape.lengths),
            "ignore_eos": True,
            "temperature": 2,
            "seed": 1000 * number + turn,
            "allowed_token_ids": shape.words,
        }
        try:
            async with http.post(f"{url}/completions", json=body) as answer:
                await answer.read()
                told["answered" if answer.ok else str(answer.status)] += 1
        except aiohttp.ClientError as error:
            told[type(error).__name__] += 1
            await asyncio.sleep(1)


async def main(url: str, users: int, shape: Shape, stop: Path, report: Path) -> None:
    """Ask until the file `stop` is there."""
    told: Counter[str] = Counter()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
        asking = asyncio.gather(*(user(each, url, shape, http, told) for each in range(users)))
        while not stop.exists():  # noqa: ASYNC240 - one look a second
            await asyncio.wait([asking], timeout=1)
            new = report.with_suffix(".new")
            new.write_text(json.dumps(told))
            new.rename(report)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking


if __name__ == "__main__":
    url, users, words, prompt, lengths, stop, report = sys.argv[1:]
    some = list(VOCABULARY[:: len(VOCABULARY) // int(words)][: int(words)])
    shape = Shape(some, int(prompt), itertools.cycle(int(each) for each in lengths.split(",")))
    asyncio.run(main(url, int(users), shape, Path(stop), Path(report)))

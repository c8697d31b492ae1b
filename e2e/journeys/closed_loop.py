"""Users of whom each waits for an answer before asking again: run in the cluster's network.

`closed_loop.py URL USERS WORDS STOP REPORT`. Four answers of four tokens are followed by one of
110: more than admission expects, so that a small cache gets full. Prompts are tokens that no other
request has, and answers are drawn from WORDS tokens: of one, every draft holds; of many, hardly
any does. It asks until the file STOP is there; REPORT shows how it stands.
"""

import asyncio
import contextlib
import json
import random
import sys
from collections import Counter
from pathlib import Path

import aiohttp

LENGTHS = (4, 4, 4, 4, 110)
PROMPT_TOKENS = 16
VOCABULARY = range(100, 40_000)


async def user(
    number: int, url: str, words: list[int], http: aiohttp.ClientSession, told: Counter[str]
) -> None:
    """One user, for ever."""
    chance = random.Random(number)
    turn = number
    while True:
        turn += 1
        body = {
            "model": "demo",
            "prompt": chance.choices(VOCABULARY, k=PROMPT_TOKENS),
            "max_tokens": LENGTHS[turn % len(LENGTHS)],
            "ignore_eos": True,
            "temperature": 2,
            "seed": 1000 * number + turn,
            "allowed_token_ids": words,
        }
        try:
            async with http.post(f"{url}/completions", json=body) as answer:
                await answer.read()
                told["answered" if answer.ok else str(answer.status)] += 1
        except aiohttp.ClientError as error:
            told[type(error).__name__] += 1
            await asyncio.sleep(1)


async def main(url: str, users: int, words: int, stop: Path, report: Path) -> None:
    """Ask until the file `stop` is there."""
    told: Counter[str] = Counter()
    some = list(VOCABULARY[:: len(VOCABULARY) // words][:words])
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
        asking = asyncio.gather(*(user(each, url, some, http, told) for each in range(users)))
        while not stop.exists():  # noqa: ASYNC240 - one look a second
            await asyncio.wait([asking], timeout=1)
            new = report.with_suffix(".new")
            new.write_text(json.dumps(told))
            new.rename(report)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5]))
    )

"""Clients that never stop asking: run in the cluster's network by test_no_request_lost.

Each asks with the openai SDK, half of them streamed. A 503 with Retry-After is an answer too: the
client waits as it was told and asks again. What is lost is a request without any answer; what is
cut is a stream that ended before its finish reason.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path

import openai

PROMPTS = (
    "What is the capital of France?",
    "Name three colours.",
    "Count from one to five.",
    "Say hello in Spanish.",
)
MAX_TOKENS = 12


class Clients:
    """Counts of everything that happened."""

    def __init__(self, url: str, stop: Path) -> None:
        self.client = openai.AsyncOpenAI(
            base_url=url, api_key="none", max_retries=0, timeout=openai.Timeout(180, connect=5)
        )
        self.stop = stop
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.texts: dict[str, set[str]] = {prompt: set() for prompt in PROMPTS}
        self.in_flight = 0
        self.since_s: list[float] = []

    def is_over(self) -> bool:
        """Whether nobody asks any more."""
        return self.stop.exists()

    async def loop(self, number: int) -> None:
        """One client: the next request follows the last answer at once."""
        turn = number
        while not self.is_over():
            await self.one(PROMPTS[turn % len(PROMPTS)], is_streamed=number % 2 == 0)
            turn += 1

    async def one(self, prompt: str, *, is_streamed: bool) -> None:
        """One request until it is answered, with its retries."""
        self.counts["sent"] += 1
        began = time.monotonic()
        while True:
            try:
                self.in_flight += 1
                answer = await (self.streamed(prompt) if is_streamed else self.whole(prompt))
            except openai.APIStatusError as refused:
                retry_after = refused.response.headers.get("retry-after")
                if refused.status_code != 503 or retry_after is None:
                    self.lose(f"{refused.status_code}: {refused}")
                    return
                self.counts["refused and retried"] += 1
                await asyncio.sleep(float(retry_after))
                continue
            except openai.OpenAIError as error:
                self.lose(f"{type(error).__name__}: {error.__cause__!r}")
                return
            finally:
                self.in_flight -= 1
            if answer is None:
                self.counts["cut"] += 1
            else:
                self.counts["answered"] += 1
                self.texts[prompt].add(answer)
                self.since_s.append(time.monotonic() - began)
            return

    async def whole(self, prompt: str) -> str | None:
        """One answer; None if it has no finish reason."""
        found = await self.client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=MAX_TOKENS,
            temperature=0,
        )
        choice = found.choices[0]
        return choice.message.content if choice.finish_reason else None

    async def streamed(self, prompt: str) -> str | None:
        """The same in parts."""
        parts = await self.client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=MAX_TOKENS,
            temperature=0,
            stream=True,
        )
        text, finish = "", None
        try:
            async for part in parts:
                for choice in part.choices:
                    text += choice.delta.content or ""
                    finish = choice.finish_reason or finish
        except Exception as error:
            self.errors[f"in a stream: {error!r}"] += 1
            return None
        return text if finish else None

    def lose(self, why: str) -> None:
        """A request without an answer."""
        self.counts["lost"] += 1
        self.errors[why] += 1


async def main(url: str, number: int, stop: Path, report: Path) -> None:
    """Ask until the file `stop` is there; `report` shows how it stands every second."""
    clients = Clients(url, stop)
    asking = asyncio.gather(*(clients.loop(each) for each in range(number)))
    least = number
    while not asking.done():
        await asyncio.wait([asking], timeout=1)
        if not clients.is_over() and clients.counts["answered"] > number:
            least = min(least, clients.in_flight)
        waited = sorted(clients.since_s)
        found = {
            **{name: clients.counts[name] for name in ("sent", "answered", "lost", "cut")},
            "refused and retried": clients.counts["refused and retried"],
            "least in flight": least,
            "different answers to one prompt": max(map(len, clients.texts.values())),
            "slowest_s": round(waited[-1], 1) if waited else 0,
            "errors": dict(clients.errors),
        }
        new = report.with_suffix(".new")
        new.write_text(json.dumps(found))
        new.rename(report)
    await asking


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])))

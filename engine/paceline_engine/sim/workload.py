"""Simulated loads: drawn with a seeded generator, or taken from the benchmark's workloads.

A load is an iterator in order of arrival, so a million requests need no more memory than those that
run.
"""

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from numpy.random import Generator

from paceline_engine.bench import workloads
from paceline_engine.sim.requests import SimRequest, continued, prompt

_PREFIXES = 1 << 40  # own parts of shared prefixes are numbered from here
_THINK_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lognormal token counts, cut to [low, high]; a larger sigma has a heavier tail."""

    median: float
    sigma: float
    low: int
    high: int

    def draw(self, rng: Generator) -> int:
        """One length."""
        drawn = rng.lognormal(math.log(self.median), self.sigma)
        return max(self.low, min(self.high, round(drawn)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What the requests of a load are like.

    Attributes:
        prompts: own tokens, behind a shared prefix.
        outputs: tokens at which answers stop; their `high` is asked for as max_tokens.
        burstiness: coefficient of variation of the gaps between arrivals; 1 is Poisson.
        num_prefixes: shared prefixes, the first ones more popular (1/rank); prefix_tokens: of each.
        mean_turns: of a conversation; each turn's prompt holds all that was said before.
        tenants: name -> share of the requests.
    """

    prompts: Lengths
    outputs: Lengths
    burstiness: float = 1.0
    num_prefixes: int = 0
    prefix_tokens: int = 0
    mean_turns: float = 1.0
    tenants: dict[str, float] = field(default_factory=dict)


_CHAT = Mix(
    prompts=Lengths(median=200, sigma=0.9, low=8, high=1500),
    outputs=Lengths(median=50, sigma=1.0, low=4, high=400),
)

MIXES = MappingProxyType(
    {
        "chat": _CHAT,
        "bursts": replace(_CHAT, burstiness=4.0),
        "long-tail": Mix(
            prompts=Lengths(median=150, sigma=1.6, low=8, high=16_000),
            outputs=Lengths(median=40, sigma=1.6, low=1, high=4_000),
        ),
        "prefixes": replace(_CHAT, num_prefixes=16, prefix_tokens=800),
        "conversations": replace(_CHAT, mean_turns=4.0),
        "tenants": replace(_CHAT, tenants={"large": 0.8, "medium": 0.15, "small": 0.05}),
        "small": Mix(
            prompts=Lengths(median=32, sigma=0.4, low=16, high=64),
            outputs=Lengths(median=10, sigma=0.4, low=2, high=20),
        ),
    }
)
"""Loads by name; `small` is the one that the simulator's own speed is measured with."""

NAMES: tuple[str, ...] = (*MIXES, *workloads.NAMES)


def make(name: str, rng: Generator, *, count: int | None, rate: float) -> Iterator[SimRequest]:
    """A load by name.

    Args:
        name: of `MIXES`, or a workload of the benchmark, which is the same whatever the generator.
        rng: seeded by the caller.
        count: requests; None: endless, or all that the benchmark's workload has.
        rate: requests a second on average. 0 sends all at once, and leaves the benchmark's
            schedules as they are.

    Raises:
        ValueError: no load has that name.
    """
    if name in MIXES:
        return generate(MIXES[name], rng, count=count, rate=rate)
    if name not in workloads.NAMES:
        raise ValueError(f"workload must be one of {', '.join(NAMES)}, got {name!r}")
    made = workloads.make(name, workloads.Vocabulary.random_ids())
    found = [from_item(item) for item in made.items[:count]]
    if rate:
        found = [replace(asked, arrival_s=asked.arrival_s / rate) for asked in found]
    return iter(sorted(found, key=lambda asked: asked.arrival_s))


def from_item(item: workloads.WorkItem) -> SimRequest:
    """A benchmark's request, whose answer has just the length that it asks for."""
    return SimRequest(
        arrival_s=item.arrival_s,
        prompt_token_ids=item.prompt_token_ids,
        num_output_tokens=item.max_tokens,
        max_tokens=item.max_tokens,
        group=item.group,
    )


def generate(mix: Mix, rng: Generator, *, count: int | None, rate: float) -> Iterator[SimRequest]:
    """Requests of a mix, `count` of them or without end, at `rate` a second from 0 on."""
    draw = _drawer(mix, rng)
    follow_ups: list[tuple[float, int, SimRequest]] = []
    # Each conversation has so many turns, so so many fewer of them begin.
    starts = _gaps(rng, rate / mix.mean_turns, mix.burstiness)
    next_start_s = 0.0
    number = 0
    while count is None or number < count:
        if follow_ups and follow_ups[0][0] <= next_start_s:
            at_s, _, before = heapq.heappop(follow_ups)
            asked = _next_turn(before, mix, rng, number, at_s)
        else:
            asked = draw(number, next_start_s)
            next_start_s += next(starts)
        if mix.mean_turns > 1 and rng.random() >= 1 / mix.mean_turns:
            follow_s = asked.arrival_s + float(rng.exponential(_THINK_S))
            heapq.heappush(follow_ups, (follow_s, number, asked))
        yield asked
        number += 1


def _gaps(rng: Generator, rate: float, burstiness: float) -> Iterator[float]:
    """Times between arrivals: gamma distributed, which is exponential at burstiness 1."""
    if not rate:
        while True:
            yield 0.0
    shape = 1 / burstiness**2
    while True:
        yield from rng.gamma(shape, 1 / (rate * shape), 1024).tolist()


def _drawer(mix: Mix, rng: Generator) -> Callable[[int, float], SimRequest]:
    names, shares = list(mix.tenants), list(mix.tenants.values())
    ranks = [1 / (rank + 1) for rank in range(mix.num_prefixes)]
    prefixes = [prompt(_PREFIXES + i, mix.prefix_tokens) for i in range(mix.num_prefixes)]

    def draw(number: int, at_s: float) -> SimRequest:
        prefix = prefixes[_pick(rng, ranks)] if prefixes else ()
        return SimRequest(
            arrival_s=at_s,
            prompt_token_ids=prompt(number, len(prefix) + mix.prompts.draw(rng), prefix),
            num_output_tokens=mix.outputs.draw(rng),
            max_tokens=mix.outputs.high,
            tenant=names[_pick(rng, shares)] if names else "",
        )

    return draw


def _pick(rng: Generator, weights: list[float]) -> int:
    at = rng.random() * sum(weights)
    for index, weight in enumerate(weights):
        at -= weight
        if at < 0:
            return index
    return len(weights) - 1


def _next_turn(
    before: SimRequest, mix: Mix, rng: Generator, number: int, at_s: float
) -> SimRequest:
    said = len(before.prompt_token_ids) + before.num_output_tokens
    return replace(
        before,
        arrival_s=at_s,
        prompt_token_ids=prompt(number, said + mix.prompts.draw(rng), continued(before, said)),
        num_output_tokens=mix.outputs.draw(rng),
    )

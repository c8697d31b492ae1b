"""Small simulated engines and loads, for tests of the simulator and of what is tuned in it."""

from collections.abc import Iterable, Sequence
from typing import Any

from numpy.random import Generator

from paceline_crds.settings import EngineSettings
from paceline_engine.sim.arrivals import ClosedLoop, OpenLoop
from paceline_engine.sim.limits import limits_of
from paceline_engine.sim.requests import SimRequest, continued, prompt
from paceline_engine.sim.simulator import Policy, Simulator
from paceline_engine.sim.step_cost import LinearCost, StepCost

SMALL_COST = LinearCost(step=4.0, prefill_token=0.05, decode_token=0.2, kv_token=0.0002)
"""A machine on which a prompt of 1,000 tokens takes 54 ms and sixteen decodes take 8."""


def small_simulator(
    load: OpenLoop | ClosedLoop | Iterable[SimRequest],
    *,
    cost: StepCost = SMALL_COST,
    policy: Policy = Policy.CONTINUOUS,
    **settings: Any,
) -> Simulator:
    """A simulator with 512 blocks, 16 places and a budget of 512 tokens unless settings say so."""
    defaults: dict[str, Any] = {
        "num_kv_blocks": 512,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
    }
    made = EngineSettings(**(defaults | settings))
    arrivals = load if isinstance(load, OpenLoop | ClosedLoop) else OpenLoop(load)
    return Simulator(made, limits_of(made), cost, arrivals, policy=policy)


def at_once(lengths: Sequence[int], *, num_prompt_tokens: int = 16) -> list[SimRequest]:
    """Requests that come together; `lengths` are their output tokens."""
    return [
        SimRequest(
            arrival_s=0.0,
            prompt_token_ids=prompt(number, num_prompt_tokens),
            num_output_tokens=length,
            max_tokens=length,
        )
        for number, length in enumerate(lengths)
    ]


def related() -> list[SimRequest]:
    """A request, one that begins with 48 of its tokens, and one that goes on from its answer."""
    first = SimRequest(
        arrival_s=0.0, prompt_token_ids=prompt(0, 64), num_output_tokens=40, max_tokens=40
    )
    prompts = (prompt(1, 90, first.prompt_token_ids[:48]), prompt(2, 120, continued(first, 96)))
    return [first] + [
        SimRequest(arrival_s=at_s, prompt_token_ids=tokens, num_output_tokens=1, max_tokens=1)
        for at_s, tokens in zip((5.0, 6.0), prompts, strict=True)
    ]


def scattered(
    rng: Generator,
    count: int,
    *,
    rate: float = 20.0,
    prompt_tokens: tuple[int, int] = (8, 200),
    output_tokens: tuple[int, int] = (1, 60),
    max_tokens: int = 64,
) -> list[SimRequest]:
    """Poisson arrivals with lengths drawn evenly from half-open ranges; they stop by themselves."""
    at_s, found = 0.0, []
    for number in range(count):
        at_s += float(rng.exponential(1 / rate))
        found.append(
            SimRequest(
                arrival_s=at_s,
                prompt_token_ids=prompt(number, int(rng.integers(*prompt_tokens))),
                num_output_tokens=int(rng.integers(*output_tokens)),
                max_tokens=max_tokens,
            )
        )
    return found

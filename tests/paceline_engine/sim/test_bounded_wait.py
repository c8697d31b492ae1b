"""A flood of one kind of prompts, that never ends, and prompts of the other kind: bounded waits.

Every step takes a millisecond here, so that a wait is a number of steps.
"""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from numpy.random import default_rng

from paceline_crds.settings import SchedulingPolicy
from paceline_engine.sim.requests import SimRequest, prompt
from paceline_engine.sim.step_cost import LinearCost
from paceline_engine.testing.sim_loads import small_simulator

pytestmark = pytest.mark.slow

BUDGET, SEATS = 1024, 256
LANE = (BUDGET - SEATS) // 2
"""What either kind is sure of in a step beside so many decodes while both want tokens."""
FLOOD_S, PROBES_S = 0.2, (0.04, 0.08, 0.12)
SHORT, LONG = (8, 100), (600, 3000)


def asked(number: int, at_s: float, num_prompt: int, num_output: int, group: str) -> SimRequest:
    return SimRequest(
        arrival_s=at_s,
        prompt_token_ids=prompt(number, num_prompt),
        num_output_tokens=num_output,
        max_tokens=num_output,
        group=group,
    )


def flood_of(kind: tuple[int, int], excess: float, num_output: int, seed: int) -> list[SimRequest]:
    """Prompts that arrive faster than all of every step's budget could compute them."""
    rng = default_rng(seed)
    found: list[SimRequest] = []
    arrived = 0
    while (at_s := arrived / (excess * BUDGET) / 1e3) < FLOOD_S:
        length = int(rng.integers(*kind))
        found.append(asked(1000 + len(found), at_s, length, num_output, "flood"))
        arrived += length
    return found


@settings(max_examples=8, deadline=None)
@given(
    is_long=st.booleans(),
    excess=st.floats(1.2, 4.0),
    num_output=st.integers(1, 3),
    policy=st.sampled_from([SchedulingPolicy.FCFS, SchedulingPolicy.PRIORITY]),
    seed=st.integers(0, 1000),
)
def test_a_prompt_gets_its_own_part_of_each_step_whatever_flood_there_is(
    is_long: bool, excess: float, num_output: int, policy: SchedulingPolicy, seed: int
) -> None:
    """However many of the other kind came before it and go on coming."""
    flood = flood_of(SHORT if is_long else LONG, excess, num_output, seed)
    rng = default_rng(seed)
    probes = [
        asked(number, at_s, int(rng.integers(*(LONG if is_long else SHORT))), 2, "probe")
        for number, at_s in enumerate(PROBES_S)
    ]
    sim = small_simulator(
        sorted([*flood, *probes], key=lambda one: one.arrival_s),
        cost=LinearCost(step=1.0),
        max_num_seqs=SEATS,
        num_kv_blocks=8192,
        max_num_batched_tokens=BUDGET,
        queue_max_requests=100_000,
        scheduling_policy=policy,
    )
    sim.advance(FLOOD_S)
    assert sim.num_waiting > 0 or sim.num_running > 50, "a flood leaves work behind"
    waits = [one for one in sim.ledger.served if one.group == "probe"]
    assert len(waits) == len(probes)
    for one in waits:
        steps = math.ceil(one.num_prompt_tokens / LANE) + 2
        assert (one.first_token_s - one.arrival_s) * 1e3 <= steps + 1e-6

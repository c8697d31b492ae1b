"""What policy Fair promises, in the simulator: shares, a light tenant's wait, bounded waits."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.random import default_rng

from paceline_crds import metrics
from paceline_engine.core.snapshot import StatsSnapshot
from paceline_engine.sim.requests import SimRequest, prompt
from paceline_engine.sim.simulator import Policy, Simulator
from paceline_engine.testing.sim_loads import SMALL_COST, small_simulator

pytestmark = pytest.mark.slow

LONGEST_STEP_S = 0.04
"""A full step of the small simulator: 4 ms, 512 prompt tokens at 0.05, 16 decodes, their KV."""


def asked(
    number: int, at_s: float, tenant: str, num_prompt: int = 100, num_output: int = 30
) -> SimRequest:
    return SimRequest(
        arrival_s=at_s,
        prompt_token_ids=prompt(number, num_prompt),
        num_output_tokens=num_output,
        max_tokens=num_output,
        tenant=tenant,
    )


def together(*loads: Sequence[SimRequest]) -> list[SimRequest]:
    return sorted((one for load in loads for one in load), key=lambda one: one.arrival_s)


def fair(load: Sequence[SimRequest], **given_settings: Any) -> Simulator:
    return small_simulator(load, policy=Policy.FAIR, **given_settings)


def served(stats: StatsSnapshot, tenant: str) -> float:
    return sum(
        stats.value(metrics.SERVED_TOKENS, tenant=tenant, kind=kind) for kind in metrics.TOKEN_KINDS
    )


def ttft_s(sim: Simulator, tenant: str) -> list[float]:
    found = [one for one in sim.ledger.served if one.tenant == tenant]
    assert found
    assert not any(math.isnan(one.first_token_s) for one in found), "it never began"
    return [one.first_token_s - one.arrival_s for one in found]


def poisson(
    seed: int, tenant: str, rate: float, until_s: float, first_number: int
) -> list[SimRequest]:
    rng = default_rng(seed)
    at_s, found = 0.0, []
    while (at_s := at_s + float(rng.exponential(1 / rate))) < until_s:
        num_prompt, num_output = int(rng.integers(50, 300)), int(rng.integers(10, 60))
        number = first_number + len(found)
        found.append(asked(number, at_s, tenant, num_prompt, num_output))
    return found


@pytest.mark.parametrize(
    ("gold", "free"),
    [((100, 30), (100, 30)), ((900, 10), (900, 10)), ((20, 100), (20, 100))],
)
def test_backlogged_tenants_are_served_three_to_one(
    gold: tuple[int, int], free: tuple[int, int]
) -> None:
    load = [asked(i, 0.0, "gold", *gold) for i in range(900)]
    load += [asked(1000 + i, 0.0, "free", *free) for i in range(400)]
    sim = fair(load, tenants=[{"name": "gold", "weight": 3}], prefix_caching=False)
    sim.advance(2.0)
    before = sim.snapshot()
    sim.advance(8.0)
    after = sim.snapshot()
    assert after.value(metrics.TENANT_REQUESTS, tenant="gold", state="waiting") > 50
    assert after.value(metrics.TENANT_REQUESTS, tenant="free", state="waiting") > 50
    parts = [served(after, name) - served(before, name) for name in ("gold", "free")]
    assert parts[1] > 2_000
    assert parts[0] / parts[1] == pytest.approx(3, rel=0.05)


def test_different_requests_are_served_by_cost_three_to_one() -> None:
    load = [asked(i, 0.0, "gold", 800, 5) for i in range(600)]
    load += [asked(1000 + i, 0.0, "free", 20, 60) for i in range(400)]
    sim = fair(load, tenants=[{"name": "gold", "weight": 3}], prefix_caching=False)
    sim.advance(2.0)
    before = sim.snapshot()
    sim.advance(10.0)
    after = sim.snapshot()

    def cost(tenant: str) -> float:
        kinds = [
            stats.value(metrics.SERVED_TOKENS, tenant=tenant, kind=kind)
            for kind in metrics.TOKEN_KINDS
            for stats in (before, after)
        ]
        return kinds[1] - kinds[0] + 2 * (kinds[3] - kinds[2])

    assert cost("gold") / cost("free") == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_a_flood_leaves_a_light_tenant_its_time_to_first_token(seed: int) -> None:
    until_s = 20.0
    light = poisson(seed, "light", 4.0, until_s, 0)
    busy = poisson(100 + seed, "busy", 30.0, until_s, 10_000)
    flood = [asked(20_000 + i, 2.0, "flood", 175, 35) for i in range(600)]
    calm, flooded = fair(together(light, busy)), fair(together(light, busy, flood))
    for sim in (calm, flooded):
        sim.advance(until_s + 2)
    stats = flooded.snapshot()
    assert stats.value(metrics.TENANT_REQUESTS, tenant="flood", state="waiting") > 50
    share = served(stats, "light") / sum(served(stats, t) for t in ("light", "busy", "flood"))
    assert 0.03 < share < 1 / 6, "the light tenant offers at most half of its share"
    before, during = (float(np.quantile(ttft_s(sim, "light"), 0.99)) for sim in (calm, flooded))
    assert during <= 1.5 * before


def test_without_fairness_the_same_flood_keeps_the_light_tenant_waiting() -> None:
    light = poisson(0, "light", 2.5, 10.0, 0)
    flood = [asked(20_000 + i, 0.0, "flood", 175, 35) for i in range(400)]
    waits = []
    for policy in (Policy.CONTINUOUS, Policy.FAIR):
        sim = small_simulator(together(light, flood), policy=policy)
        sim.run()
        waits.append(float(np.quantile(ttft_s(sim, "light"), 0.5)))
    assert waits[0] > 20 * waits[1]


def test_an_idle_tenants_share_is_used_by_others() -> None:
    load = [asked(i, 0.0, "free") for i in range(200)]
    ends = []
    for policy in (Policy.CONTINUOUS, Policy.FAIR):
        sim = small_simulator(
            load, policy=policy, tenants=[{"name": "gold", "weight": 9}], prefix_caching=False
        )
        sim.run()
        ends.append(sim.now)
    assert ends[1] == pytest.approx(ends[0], rel=0.01)


def _probes(kinds: tuple[int, int], rng_seed: int) -> Iterator[SimRequest]:
    """Prompts so far apart that they stay within a fifth of the engine.

    Closer ones are more than a tenant's share beside a flood of weight 4, and rightly wait.
    """
    rng = default_rng(rng_seed)
    for number in range(5):
        arrival_s = 1.0 + 5 * number + float(rng.random())
        yield asked(number, arrival_s, "probe", int(rng.integers(*kinds)), 3)


@settings(max_examples=25, deadline=None)
@given(
    is_long=st.booleans(),
    num_flood=st.integers(50, 300),
    flood_output=st.integers(1, 200),
    weight=st.integers(1, 4),
    long_prefill=st.sampled_from([None, 0, 64]),
    seed=st.integers(0, 1000),
)
def test_the_wait_under_a_flood_of_the_other_kind_is_bounded(
    is_long: bool,
    num_flood: int,
    flood_output: int,
    weight: int,
    long_prefill: int | None,
    seed: int,
) -> None:
    """A prompt of one kind waits for a seat, then for its own part of the prefill budget."""
    kinds = ((600, 3000), (8, 100)) if is_long else ((8, 100), (600, 3000))
    rng = default_rng(seed)
    flood = [
        asked(1000 + i, 0.0, "flood", int(rng.integers(*kinds[1])), flood_output)
        for i in range(num_flood)
    ]
    sim = fair(
        together(list(_probes(kinds[0], seed)), flood),
        tenants=[{"name": "flood", "weight": weight}],
        long_prefill_tokens=long_prefill,
        num_kv_blocks=4096,
    )
    sim.run()
    for one in sim.ledger.served:
        if one.tenant == "probe":
            part = 512 / (1 + weight) if long_prefill is None else 64 / (1 + weight)
            steps = 8 + math.ceil(one.num_prompt_tokens / part)
            assert one.first_token_s - one.arrival_s <= steps * LONGEST_STEP_S
    assert SMALL_COST.step == 4.0

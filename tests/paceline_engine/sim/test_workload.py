"""Loads: rates, tails, prefixes, conversations, tenants; the benchmark's own."""

import itertools
from collections import Counter

import numpy as np
import pytest

from paceline_engine.bench import workloads
from paceline_engine.sim import workload
from paceline_engine.sim.requests import SimRequest


def made(name: str, count: int = 2000, rate: float = 5.0, seed: int = 1) -> list[SimRequest]:
    return list(workload.make(name, np.random.default_rng(seed), count=count, rate=rate))


@pytest.mark.parametrize("name", list(workload.MIXES))
def test_a_load_is_the_same_for_a_seed_and_in_order_of_arrival(name: str):
    one, other = made(name, 100), made(name, 100)
    assert one == other
    assert one != made(name, 100, seed=2)
    arrivals = [asked.arrival_s for asked in one]
    assert arrivals == sorted(arrivals)
    for asked in one:
        assert 1 <= asked.num_output_tokens <= asked.max_tokens


@pytest.mark.parametrize("name", ["chat", "bursts", "conversations"])
def test_the_mean_rate_is_the_one_asked_for(name: str):
    requests = made(name, 6000)
    assert len(requests) / requests[-1].arrival_s == pytest.approx(5.0, rel=0.15)


def test_bursts_are_burstier_than_poisson():
    def variation(name: str) -> float:
        gaps = np.diff([asked.arrival_s for asked in made(name, 4000)])
        return float(gaps.std() / gaps.mean())

    assert variation("chat") == pytest.approx(1.0, abs=0.1)
    assert variation("bursts") > 3


def test_long_tails_are_heavier():
    def share_of_longest(name: str) -> float:
        lengths = sorted(asked.num_output_tokens for asked in made(name))
        return sum(lengths[-len(lengths) // 20 :]) / sum(lengths)

    assert share_of_longest("long-tail") > 1.5 * share_of_longest("chat")


def test_prefixes_are_shared_by_popularity():
    heads = Counter(asked.prompt_token_ids[:800] for asked in made("prefixes"))
    assert len(heads) == 16
    (_, most), *_, (_, least) = heads.most_common()
    assert most > 5 * least


def test_a_turn_of_a_conversation_holds_what_was_said_before():
    requests = made("conversations", 400)
    own = [asked.prompt_token_ids for asked in requests]
    longer = sum(
        any(later[: len(first)] == first and len(later) > len(first) for later in own[n + 1 :])
        for n, first in enumerate(own[:200])
    )
    assert longer > 100


def test_tenants_have_their_shares():
    shares = Counter(asked.tenant for asked in made("tenants"))
    assert shares["large"] / 2000 == pytest.approx(0.8, abs=0.03)
    assert shares["small"] / 2000 == pytest.approx(0.05, abs=0.02)


def test_rate_zero_sends_all_at_once():
    assert {asked.arrival_s for asked in made("chat", 50, rate=0.0)} == {0.0}


def test_a_load_may_be_endless():
    endless = workload.make("chat", np.random.default_rng(1), count=None, rate=1.0)
    assert len(list(itertools.islice(endless, 500))) == 500


@pytest.mark.parametrize("name", workloads.NAMES)
def test_workloads_of_the_benchmark_are_the_same_ones(name: str):
    items = workloads.make(name, workloads.Vocabulary.random_ids()).items
    found = list(workload.make(name, np.random.default_rng(1), count=None, rate=2.0))
    assert sorted(len(asked.prompt_token_ids) for asked in found) == sorted(
        len(item.prompt_token_ids) for item in items
    )
    assert found[-1].arrival_s == max(item.arrival_s for item in items) / 2


def test_an_unknown_load_is_refused():
    with pytest.raises(ValueError, match="must be one of chat"):
        made("nonsense")

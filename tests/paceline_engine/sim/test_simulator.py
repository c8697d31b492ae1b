"""The simulator as a whole: what must hold of every run, and runs whose outcome is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from paceline_crds import metrics
from paceline_engine.bench.workloads import steps
from paceline_engine.core.errors import SettingRefused
from paceline_engine.sim.arrivals import ClosedLoop
from paceline_engine.sim.jitter import Jitter
from paceline_engine.sim.requests import SimRequest, prompt
from paceline_engine.sim.simulator import Policy, Simulator
from paceline_engine.sim.step_cost import LinearCost
from paceline_engine.testing.sim_loads import (
    SMALL_COST,
    at_once,
    related,
    scattered,
    small_simulator,
)

ONE_MS = LinearCost(step=1.0)


def load(count: int = 120, seed: int = 7, **ranges: object) -> list[SimRequest]:
    return scattered(np.random.default_rng(seed), count, **ranges)  # type: ignore[arg-type]


def outcome(sim: Simulator) -> list[object]:
    return [(s.arrival_s, s.first_token_s, s.end_s, s.reason) for s in sim.ledger.served]


@pytest.mark.slow
@pytest.mark.parametrize("policy", list(Policy))
def test_the_same_seed_gives_the_same_run(policy: Policy):
    def run() -> Simulator:
        jitter = Jitter(np.array([0.9, 1.0, 1.3]), np.random.default_rng(3))
        sim = small_simulator(load(60), policy=policy)
        sim._jitter = jitter
        sim.run()
        return sim

    one, other = run(), run()
    assert outcome(one) == outcome(other)
    assert one.snapshot() == other.snapshot()


@pytest.mark.slow
@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("num_kv_blocks", [24, 512])
def test_every_request_ends_with_the_tokens_it_was_to_give(policy: Policy, num_kv_blocks: int):
    requests = load(80)
    sim = small_simulator(requests, policy=policy, num_kv_blocks=num_kv_blocks)
    sim.run()
    sim.check()
    assert sim.is_done
    assert len(sim.ledger.served) == len(requests)
    for asked, served in zip(requests, sim.ledger.served, strict=True):
        assert served.reason == "stop"
        assert served.num_output_tokens == asked.num_output_tokens
        assert asked.arrival_s < served.first_token_s <= served.end_s
    assert sim.ledger.gaps.count == sum(asked.num_output_tokens - 1 for asked in requests)
    assert sim.snapshot().value(metrics.KV_USAGE) == 0


def test_few_blocks_lead_to_preemption_and_still_nobody_is_lost():
    # Admission learns from the short answers that answers are short; then long ones come.
    short = load(40, prompt_tokens=(8, 40), output_tokens=(1, 3))
    long = load(40, prompt_tokens=(8, 40), output_tokens=(50, 60))
    later = [replace(one, arrival_s=one.arrival_s + 10) for one in long]
    sim = small_simulator([*short, *later], num_kv_blocks=32, watermark="0")
    sim.run()
    stats = sim.snapshot()
    assert stats.value(metrics.PREEMPTIONS) > 0
    assert stats.value(metrics.SUCCESS, finished_reason="stop") == 80


@pytest.mark.parametrize(
    ("policy", "is_static"), [(Policy.STATIC, True), (Policy.CONTINUOUS, False)]
)
def test_steps_of_equal_cost_take_as_long_as_the_closed_form_says(policy: Policy, is_static: bool):
    lengths = np.random.default_rng(5).integers(1, 40, 50).tolist()
    sim = small_simulator(at_once(lengths), cost=ONE_MS, policy=policy, max_num_seqs=8)
    sim.run()
    assert sim.now * 1e3 == pytest.approx(steps(lengths, 8, is_static=is_static))


def test_steps_of_the_dual_track_hold_prompts_or_decodes_never_both():
    sim = small_simulator(load(60), policy=Policy.DUAL_TRACK)
    sim.run()
    rows = sim.steps(10_000)
    assert {(row["num_prefill_tokens"] > 0) + (row["num_decode_tokens"] > 0) for row in rows} == {1}


def test_a_long_prompt_stands_in_the_way_of_streams_more_under_the_dual_track():
    steady = at_once([200] * 8)
    long = SimRequest(
        arrival_s=0.5, prompt_token_ids=prompt(99, 4000), num_output_tokens=1, max_tokens=1
    )
    worst = {}
    for policy in (Policy.CONTINUOUS, Policy.DUAL_TRACK):
        sim = small_simulator([*steady, long], policy=policy)
        sim.run()
        worst[policy] = sim.ledger.gaps.max_s
    assert worst[Policy.DUAL_TRACK] > 3 * worst[Policy.CONTINUOUS]


@pytest.mark.slow
def test_time_in_slices_is_the_same_time():
    whole, sliced = small_simulator(load()), small_simulator(load())
    whole.run()
    at_s = 0.0
    while not sliced.is_done:
        at_s += 0.0173
        sliced.advance(at_s)
        assert sliced.now == pytest.approx(at_s)
    assert outcome(whole) == outcome(sliced)


def test_counters_read_like_scrapes_only_grow():
    sim = small_simulator(load())
    names = (metrics.GENERATION_TOKENS, metrics.PROMPT_TOKENS, metrics.STEPS)
    before = [0.0] * len(names)
    for tenth in range(1, 80):
        sim.advance(tenth / 10)
        stats = sim.snapshot()
        now = [stats.value(name) for name in names]
        assert all(new >= old for new, old in zip(now, before, strict=True))
        assert stats.now_s == sim.now
        before = now
    assert before[0] == sum(served.num_output_tokens for served in sim.ledger.served)


def test_a_live_change_takes_effect_between_two_steps():
    sim = small_simulator(at_once([400] * 16))
    sim.advance(0.5)
    assert sim.num_running == 16
    change = sim.apply_settings({"maxNumSeqs": 4})
    assert (change.old, change.new) == ({"maxNumSeqs": 16}, {"maxNumSeqs": 4})
    sim.advance(1.0)
    assert sim.num_running == 16  # running work is never killed, it drains
    stats = sim.snapshot()
    assert stats.value(metrics.SETTING, name="maxNumSeqs") == 4
    assert stats.value(metrics.SETTINGS_GENERATION) == 1
    sim.run()
    assert {served.reason for served in sim.ledger.served} == {"length"}


def test_steps_teach_the_governor_how_much_of_a_prompt_fits_the_target():
    streams = at_once([400] * 8)
    long = SimRequest(
        arrival_s=0.5, prompt_token_ids=prompt(99, 4000), num_output_tokens=1, max_tokens=1
    )
    sim = small_simulator([*streams, long], inter_token_target_ms=20)
    sim.run()
    beside = [
        row["num_prefill_tokens"]
        for row in sim.steps(10_000)
        if row["num_decode_tokens"] and row["num_prefill_tokens"]
    ]
    assert max(beside) > 200  # 20 ms less 6 for the decodes, at 0.05 ms a token
    assert sim.ledger.gaps.max_s < 0.022


def test_a_smaller_budget_shortens_the_steps_that_follow():
    prompts = [
        SimRequest(
            arrival_s=number * 0.5,
            prompt_token_ids=prompt(number, 2000),
            num_output_tokens=1,
            max_tokens=1,
        )
        for number in range(8)
    ]
    sim = small_simulator(prompts)
    sim.advance(1.9)
    sim.apply_settings({"maxNumBatchedTokens": 64})
    first_later = sim.snapshot().value(metrics.STEPS)
    sim.run()
    rows = sim.steps(10_000)
    assert max(row["num_tokens"] for row in rows[: int(first_later)]) == 512
    assert max(row["num_tokens"] for row in rows[int(first_later) + 1 :]) <= 64


def test_a_change_beyond_the_boot_maximum_is_refused_and_changes_nothing():
    sim = small_simulator(at_once([4]))
    with pytest.raises(SettingRefused, match="bootMaxNumSeqs"):
        sim.apply_settings({"maxNumSeqs": 33})
    assert sim.settings.max_num_seqs == 16


def test_a_full_queue_refuses_and_the_ledger_says_so():
    sim = small_simulator(at_once([50] * 40), queue_max_requests=10)
    sim.run()
    reasons = [served.reason for served in sim.ledger.served]
    assert reasons.count("length") + reasons.count("refused with 503") == 40
    assert reasons.count("refused with 503") > 0


def test_a_request_that_waits_too_long_ends_with_a_timeout():
    sim = small_simulator(at_once([3000, 10]), max_num_seqs=1, queue_timeout_s=1)
    sim.run()
    assert [served.reason for served in sim.ledger.served] == ["length", "timeout"]


def test_clients_of_a_closed_loop_wait_for_their_answers():
    requests = at_once([10] * 30)
    sim = small_simulator(ClosedLoop(requests, 4, think_s=0.25))
    most = 0
    while not sim.is_done:
        sim.advance(sim.now + 0.003)
        most = max(most, sim.num_running + sim.num_waiting)
    assert most == 4
    assert len(sim.ledger.served) == 30
    ends = sorted(served.end_s for served in sim.ledger.served)
    starts = sorted(served.arrival_s for served in sim.ledger.served)[4:]
    assert starts == pytest.approx([end + 0.25 for end in ends[:26]])


def test_equal_prefixes_hit_and_answers_can_be_gone_on_from():
    sim = small_simulator(related())
    sim.run()
    assert [served.num_cached_tokens for served in sim.ledger.served] == [0, 48, 96]


def test_a_step_takes_what_the_cost_model_says():
    sim = small_simulator(at_once([2], num_prompt_tokens=100))
    sim.run()
    (served,) = sim.ledger.served
    prefill_ms = 4 + 0.05 * 100 + 0.0002 * 100
    decode_ms = 4 + 0.2 + 0.0002 * 101
    assert served.first_token_s * 1e3 == pytest.approx(prefill_ms)
    assert served.end_s * 1e3 == pytest.approx(prefill_ms + decode_ms)
    assert SMALL_COST.step == 4.0


def test_jitter_scales_steps():
    sim = small_simulator(at_once([5]), cost=ONE_MS)
    sim._jitter = Jitter(np.array([2.0]), np.random.default_rng(1))
    sim.run()
    assert sim.now * 1e3 == pytest.approx(10.0)


@pytest.mark.slow
def test_the_ledger_and_the_recorder_agree():
    sim = small_simulator(load())
    sim.run()
    stats = sim.snapshot()
    served = sim.ledger.served
    assert stats.histogram(metrics.ITL).count == sim.ledger.gaps.count
    assert stats.histogram(metrics.ITL).sum == pytest.approx(sim.ledger.gaps.total_s)
    ttft = math.fsum(one.first_token_s - one.arrival_s for one in served)
    assert stats.histogram(metrics.TTFT).sum == pytest.approx(ttft)

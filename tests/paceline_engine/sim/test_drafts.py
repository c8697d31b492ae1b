"""Drafts of a simulated engine: accepted as often as chance says, and never a token too many."""

import pytest
from numpy.random import default_rng

from paceline_crds import metrics
from paceline_crds.settings import EngineSettings, SpeculativeMethod
from paceline_engine.sim.arrivals import OpenLoop
from paceline_engine.sim.drafts import Drafts
from paceline_engine.sim.limits import limits_of
from paceline_engine.sim.simulator import Simulator
from paceline_engine.testing.sim_loads import SMALL_COST, scattered

REQUESTS = scattered(default_rng(1), 60)


def simulated(acceptance: float | None, num_tokens: int = 4) -> Simulator:
    settings = EngineSettings(
        num_kv_blocks=512,
        max_num_seqs=16,
        max_num_batched_tokens=512,
        speculative_method=SpeculativeMethod.NGRAM,
        speculative_num_tokens=num_tokens,
        speculative_adaptive=False,
    )
    drafts = None if acceptance is None else Drafts(acceptance, default_rng(2))
    load = OpenLoop(REQUESTS)
    sim = Simulator(settings, limits_of(settings), SMALL_COST, load, drafts=drafts)
    sim.run()
    sim.check()
    return sim


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", [None, 0.0, 0.5, 0.9])
def test_every_request_gets_its_own_tokens_whatever_is_accepted(acceptance: float | None) -> None:
    sim = simulated(acceptance)
    assert [served.num_output_tokens for served in sim.ledger.served] == [
        asked.num_output_tokens for asked in REQUESTS
    ]
    assert {served.reason for served in sim.ledger.served} <= {"stop", "length"}


@pytest.mark.slow
def test_drafts_hold_as_often_as_chance_says() -> None:
    stats = simulated(0.5, num_tokens=1).snapshot()
    drafted = stats.value(metrics.SPEC_DRAFT_TOKENS)
    assert drafted > 500
    assert stats.value(metrics.SPEC_ACCEPTED) / drafted == pytest.approx(0.5, abs=0.07)


@pytest.mark.slow
def test_accepted_drafts_save_steps_and_rejected_ones_cost_time() -> None:
    good, bad, none = simulated(0.9), simulated(0.0), simulated(None)
    assert good.snapshot().value(metrics.STEPS) < 0.7 * none.snapshot().value(metrics.STEPS)
    assert bad.snapshot().value(metrics.SPEC_ACCEPTED) == 0
    assert bad.ledger.gaps.quantile(0.5) > none.ledger.gaps.quantile(0.5)


@pytest.mark.parametrize("acceptance", [-0.1, 1.0])
def test_a_chance_is_a_share(acceptance: float) -> None:
    with pytest.raises(ValueError, match="must be in"):
        Drafts(acceptance, default_rng(1))

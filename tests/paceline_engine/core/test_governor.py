"""A target between two tokens bounds what prefill adds to a step, and starves nobody."""

from collections.abc import Callable

import numpy as np
import pytest

from paceline_crds.settings import EngineSettings
from paceline_engine.core import step_features
from paceline_engine.core.governor import FIRST_TOKENS, MIN_TOKENS, Governor
from paceline_engine.core.plan import StepResult
from paceline_engine.core.request import Request, SamplingParams
from paceline_engine.core.scheduler import Scheduler
from paceline_engine.core.stats import Recorder
from paceline_engine.core.step_features import StepFeatures
from paceline_engine.testing.trial import Trial, tiny_limits

ROOMY = tiny_limits(num_blocks=2000, block_size=16, max_slots=32, max_step_tokens=2048)
STREAMS = 16
Cost = Callable[[StepFeatures], float]


def decodes(num_rows: int = STREAMS, context: int = 200) -> StepFeatures:
    return step_features.of_decodes(np.full(num_rows, context, dtype=np.int32))


def cpu_ms(features: StepFeatures) -> float:
    """A step of a small model on a few cores."""
    return (
        12.0
        + 0.9 * features.num_prefill_tokens
        + 1.1 * features.num_decode_tokens
        + 4e-4 * features.kv_tokens_read
        + 1e-4 * features.attention_pairs
    )


class Interference:
    """Steady streams, and a long prompt every three simulated seconds.

    Attributes:
        gaps_ms: one per step and running stream.
        prefilled: prompt tokens computed while streams ran.
    """

    def __init__(self, cost: Cost, spread: float, **settings: object) -> None:
        self._cost, self._spread = cost, spread
        self._rng = np.random.default_rng(7)
        values = {"block_size": 16, "max_num_seqs": 32, "max_num_batched_tokens": 2048}
        start = EngineSettings(**{**values, **settings})
        self.scheduler = Scheduler(start, ROOMY, Recorder(start, ROOMY))
        self.now, self.prefilled, self._id = 0.0, 0, 0
        self.gaps_ms: list[float] = []
        for _ in range(STREAMS):
            self.submit(32, max_tokens=1500)

    def submit(self, length: int, max_tokens: int) -> int:
        self._id += 1
        tokens = tuple(self._rng.integers(0, 97, length).tolist())
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = Request(
            request_id=self._id,
            external_id=str(self._id),
            prompt_token_ids=tokens,
            params=params,
            arrival_s=self.now,
        )
        assert self.scheduler.submit(request, self.now) is None
        return self._id

    def step(self) -> float:
        plan = self.scheduler.plan(self.now)
        assert plan is not None
        features = step_features.of(plan)
        ms = self._cost(features) * float(np.exp(self._rng.normal(0, self._spread)))
        self.now += ms / 1e3
        tokens = self._rng.integers(0, 97, len(plan.slots)).astype(np.int32)
        tokens = np.where(plan.samples, tokens, -1).astype(np.int32)[:, None]
        self.scheduler.apply(StepResult(step_id=plan.step_id, tokens=tokens), self.now)
        self.scheduler.learn(features, ms)
        self.prefilled += features.num_prefill_tokens
        return ms

    def run(self, seconds: float, every_s: float | None = 3.0) -> list[float]:
        gaps: list[float] = []
        end, due = self.now + seconds, self.now
        while self.now < end:
            if every_s is not None and self.now >= due:
                self.submit(1500, max_tokens=1)
                due += every_s
            gaps.append(self.step())
        return gaps


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.5, 2.0, 3.0])
def test_the_tail_of_gaps_stays_near_the_target_under_long_prompts(factor: float) -> None:
    """The target is a multiple of what the streams have without prompts, at 8% of noise."""
    steady = Interference(cpu_ms, spread=0.08)
    target = factor * float(np.percentile(steady.run(15, every_s=None), 99))
    governed = Interference(cpu_ms, spread=0.08, inter_token_target_ms=round(target))
    gaps = governed.run(30)
    assert np.percentile(gaps, 99) <= 1.2 * target
    loose = Interference(cpu_ms, spread=0.08)
    assert np.percentile(loose.run(30), 99) > 4 * target, "the load must be worth governing"
    # and nothing is given away: what the target allows is used
    during = [gap for gap in gaps if gap > 0.7 * target]
    assert len(during) > 0.02 * len(gaps)


def test_a_prompt_moves_on_though_streams_alone_use_up_the_target() -> None:
    crowd = Interference(cpu_ms, spread=0.0, inter_token_target_ms=1)
    for _ in range(10):
        crowd.step()
    crowd.submit(160, max_tokens=1)
    before, steps = crowd.prefilled, 0
    while crowd.prefilled - before < 160:
        crowd.step()
        steps += 1
        assert steps <= 160 // MIN_TOKENS + 1


def test_nobody_is_held_back_while_no_stream_runs() -> None:
    trial = Trial(ROOMY, inter_token_target_ms=1)
    trial.submit([3] * 1000, max_tokens=1)
    plan = trial.step()
    assert plan is not None
    assert plan.num_tokens.tolist() == [1000]


def test_a_target_is_put_in_force_and_off_between_two_steps() -> None:
    trial = Trial(ROOMY, long_prefill_tokens=0)
    trial.submit([5], max_tokens=60)
    trial.step()
    trial.change(inter_token_target_ms=5)
    trial.submit([7] * 500, max_tokens=1)
    plan = trial.step()
    assert plan is not None
    assert plan.num_tokens.tolist() == [1, FIRST_TOKENS]
    trial.change(inter_token_target_ms=None)
    plan = trial.step()
    assert plan is not None
    assert plan.num_tokens.tolist() == [1, 500 - FIRST_TOKENS]
    trial.run()


def test_the_flight_record_tells_the_budget_that_the_target_left() -> None:
    trial = Trial(ROOMY, inter_token_target_ms=5)
    trial.submit([5], max_tokens=60)
    trial.step()
    trial.submit([7] * 500, max_tokens=1)
    trial.step()
    assert trial.recorder.last_step is not None
    assert trial.recorder.last_step.budget_tokens == 1 + FIRST_TOKENS


def taught(cost: Cost, sizes: list[int]) -> Governor:
    governor = Governor()
    for _ in range(40):
        governor.observe(decodes(), cost(decodes()))
        for n in sizes:
            step = mixed(n)
            governor.observe(step, cost(step))
    return governor


def mixed(num_prefill: int, context: int = 0) -> StepFeatures:
    base = decodes()
    return StepFeatures(
        num_rows=base.num_rows + 1,
        num_prefill_tokens=num_prefill,
        num_decode_tokens=base.num_decode_tokens,
        kv_tokens_read=base.kv_tokens_read + context + num_prefill,
        attention_pairs=base.attention_pairs
        + num_prefill * context
        + num_prefill * (num_prefill + 1) // 2,
        num_sampled=base.num_sampled,
    )


def test_a_longer_context_leaves_fewer_tokens() -> None:
    governor = taught(cpu_ms, [16, 64, 256])
    near = governor.prefill_tokens(120, decodes(), context=0)
    far = governor.prefill_tokens(120, decodes(), context=8000)
    assert far < near


def test_what_fits_is_what_the_model_says_with_its_margin() -> None:
    governor = taught(cpu_ms, [16, 64, 256])
    n = governor.prefill_tokens(120, decodes(), context=0)
    assert cpu_ms(mixed(n)) == pytest.approx(120 / governor.margin, rel=0.1)


def test_the_share_grows_at_most_twofold_over_what_was_seen() -> None:
    governor = taught(cpu_ms, [20])
    assert governor.prefill_tokens(10_000, decodes(), context=0) <= max(FIRST_TOKENS, 40)


def test_a_machine_that_strays_gets_a_wider_margin() -> None:
    rng = np.random.default_rng(3)
    governor = Governor()
    calm = taught(cpu_ms, [64])
    for _ in range(400):
        step = mixed(64)
        governor.observe(step, cpu_ms(step) * float(np.exp(rng.normal(0, 0.4))))
    assert governor.margin > calm.margin + 0.1

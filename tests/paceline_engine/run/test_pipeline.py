"""How many steps are on their way, what happens when one fails, and what is told of them."""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from paceline_crds import metrics
from paceline_crds.settings import EngineSettings
from paceline_engine.core.plan import StepOutputs, StepPlan
from paceline_engine.core.request import Request, SamplingParams
from paceline_engine.core.scheduler import Scheduler
from paceline_engine.core.stats import Recorder
from paceline_engine.run.pipeline import MAX_OUTSTANDING, StepFailed, StepPipeline
from paceline_engine.testing.fake_runner import DraftRule, FakeRunner, partly_right, solo_tokens
from paceline_engine.testing.trial import tiny_limits

LIMITS = tiny_limits(vocab_size=61)


class Gated(FakeRunner):
    """A fake runner whose steps begin when the test lets them.

    Attributes:
        gate: open at first.
        fail_steps: ids of steps that raise.
    """

    def __init__(self, drafter: DraftRule | None = None) -> None:
        super().__init__(LIMITS, drafter)
        self.gate = threading.Event()
        self.gate.set()
        self.fail_steps: set[int] = set()

    def forward(self, plan: StepPlan) -> None:
        """When the gate is open."""
        assert self.gate.wait(60)
        if plan.step_id in self.fail_steps:
            raise RuntimeError("the device says no")
        super().forward(plan)


class Rig:
    """A pipeline over a gated runner; the clock counts its readings."""

    def __init__(self, drafter: DraftRule | None = None, **settings: Any) -> None:
        settings = {"overlap": True, "max_num_seqs": 8, "block_size": 8} | settings
        self.settings = EngineSettings(**settings)
        self.runner = Gated(drafter)
        self.recorder = Recorder(self.settings, LIMITS)
        self.scheduler = Scheduler(self.settings, LIMITS, self.recorder, max_plans=MAX_OUTSTANDING)
        self.pipeline = StepPipeline(self.scheduler, self.runner, self.recorder, self._tick)
        self.requests: dict[int, Request] = {}
        self.outputs: dict[int, list[int]] = {}
        self._ticks = itertools.count()

    def _tick(self) -> float:
        return float(next(self._ticks))

    def submit(self, number: int, **params: Any) -> None:
        request = Request(
            request_id=number,
            external_id=str(number),
            prompt_token_ids=(number + 1, 2, 3),
            params=SamplingParams(**{"max_tokens": 12} | params),
            arrival_s=0.0,
        )
        assert self.scheduler.submit(request, 0.0) is None
        self.requests[number], self.outputs[number] = request, []

    def fill(self) -> list[int]:
        """Ids of the steps that were planned."""
        return [plan.step_id for plan in self.pipeline.fill(self._tick())]

    def land(self) -> StepOutputs:
        outputs, _ = self.pipeline.land()
        self.scheduler.check()
        for number, tokens in zip(outputs.request_ids.tolist(), outputs.tokens, strict=True):
            self.outputs[number] += [token for token in tokens.tolist() if token >= 0]
        return outputs

    def run(self) -> None:
        while self.fill() or not self.pipeline.is_empty:
            try:
                self.land()
            except StepFailed:
                self.scheduler.check()
        assert not self.scheduler.has_work

    def assert_solo(self) -> None:
        for number, request in self.requests.items():
            assert self.outputs[number] == solo_tokens(request, LIMITS)[0]
        active, _, _, held = self.scheduler.usage()
        assert active == held == 0


@pytest.fixture
def rigs() -> Iterator[list[Rig]]:
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.runner.gate.set()
        rig.pipeline.close()


def test_the_next_step_is_planned_while_one_is_computed_and_no_third(rigs: list[Rig]) -> None:
    rigs.append(rig := Rig())
    rig.submit(0)
    rig.runner.gate.clear()
    assert rig.fill() == [0, 1]
    assert rig.fill() == []
    assert rig.runner.num_steps == 0
    rig.runner.gate.set()
    assert rig.land().step_id == 0
    assert rig.fill() == [2]
    rig.run()
    rig.assert_solo()


def test_without_overlap_a_step_is_planned_when_the_one_before_is_done(rigs: list[Rig]) -> None:
    rigs.append(rig := Rig(overlap=False))
    rig.submit(0)
    assert rig.fill() == [0]
    assert rig.fill() == []
    rig.land()
    rig.run()
    rig.assert_solo()
    assert all(step["queued_ms"] == 0 for step in rig.recorder.steps(100))


def test_the_setting_is_live_both_ways(rigs: list[Rig]) -> None:
    rigs.append(rig := Rig())
    rig.submit(0, max_tokens=30)
    rig.fill()
    for overlap, planned in ((False, [[], [2], [3]]), (True, [[4, 5], [6], [7]])):
        rig.land()
        rig.scheduler.apply_settings(rig.settings.model_copy(update={"overlap": overlap}))
        found = [rig.fill()]
        for _ in range(2):
            rig.land()
            found.append(rig.fill())
        assert found == planned
    rig.run()
    rig.assert_solo()


@pytest.mark.parametrize("failing", [{2}, {3}, {2, 4}, {2, 3, 4, 5}])
def test_a_failed_step_takes_the_one_planned_on_top_of_it_back(
    rigs: list[Rig], failing: set[int]
) -> None:
    rigs.append(rig := Rig())
    for number in range(3):
        rig.submit(number)
    rig.runner.fail_steps = failing
    rig.run()
    rig.assert_solo()
    errors = {step["step_id"]: step["error"] for step in rig.recorder.steps(100) if step["error"]}
    first = min(failing)
    assert "the device says no" in errors[first]
    assert f"step {first} before it failed" in errors[first + 1]


def test_after_a_failure_nothing_is_outstanding(rigs: list[Rig]) -> None:
    rigs.append(rig := Rig())
    rig.submit(0)
    rig.runner.fail_steps = {0}
    rig.fill()
    with pytest.raises(StepFailed, match="RuntimeError: the device says no") as failed:
        rig.land()
    assert failed.value.plan.step_id == 0
    assert rig.pipeline.is_empty
    rig.scheduler.check()
    assert rig.scheduler.abort(0, 0.0) is not None
    assert not rig.scheduler.has_work
    active, _, _, held = rig.scheduler.usage()
    assert active == held == 0


def test_an_abort_while_two_steps_are_on_their_way_gives_its_blocks_back_after_both(
    rigs: list[Rig],
) -> None:
    rigs.append(rig := Rig(prefix_caching=False))
    rig.submit(0)
    rig.fill()
    assert rig.scheduler.abort(0, 0.0) is not None
    for _ in range(2):
        active, _, _, held = rig.scheduler.usage()
        assert (active, held) == (0, 1)
        assert rig.scheduler.has_work
        assert rig.land().finished == []
    assert rig.scheduler.usage()[3] == 0
    assert not rig.scheduler.has_work


def test_steps_with_drafts_follow_each_other(rigs: list[Rig]) -> None:
    rigs.append(
        rig := Rig(
            partly_right(61, one_wrong_in=3),
            speculative_method="Ngram",
            speculative_num_tokens=4,
            speculative_adaptive=False,
        )
    )
    rig.submit(0, max_tokens=40)
    while planned := rig.fill():
        assert len(planned) == 1
        rig.land()
    rig.assert_solo()
    assert rig.runner.num_accepted > 0
    assert all(step["queued_ms"] == 0 for step in rig.recorder.steps(100))


def test_the_flight_recorder_says_how_long_a_step_waited_behind_another(rigs: list[Rig]) -> None:
    rigs.append(rig := Rig())
    rig.submit(0)
    rig.run()
    steps = rig.recorder.steps(100)
    assert all(step["queued_ms"] > 0 for step in steps[1:])
    values = rig.recorder.snapshot(0.0)
    total_s = values.histograms[metrics.STEP_DURATION].sum
    own_s = [step["applied_s"] - step["planned_s"] - step["queued_ms"] / 1e3 for step in steps]
    assert total_s == pytest.approx(sum(own_s))

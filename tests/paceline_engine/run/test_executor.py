"""Steps are computed in their order, and none on top of one that failed."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import StepPlan, StepResult
from paceline_engine.run.executor import Executor, StepNotComputed
from paceline_engine.testing.trial import tiny_limits


class Scripted:
    """A runner that writes down what it does, and waits or fails where it is told to.

    Attributes:
        done: what was computed: ("forward" or "sample", step id).
        threads: who did it.
        may_go_on: steps wait for it.
        fails_in: (call, step id) that raises.
    """

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.threads: set[str] = set()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.fails_in: tuple[str, int] | None = None
        self._step_id = -1

    @property
    def limits(self) -> EngineLimits:
        """Of anything small."""
        return tiny_limits()

    def forward(self, plan: StepPlan) -> None:
        """Note it."""
        assert self.may_go_on.wait(60)
        self._step_id = plan.step_id
        self._note("forward")

    def sample(self) -> StepResult:
        """Note it, and answer with the step's id as its token."""
        self._note("sample")
        tokens = np.full((1, 1), self._step_id, dtype=np.int32)
        return StepResult(step_id=self._step_id, tokens=tokens)

    def do_spare_work(self) -> bool:
        """There is none."""
        return False

    def _note(self, call: str) -> None:
        self.threads.add(threading.current_thread().name)
        self.done.append((call, self._step_id))
        if self.fails_in == (call, self._step_id):
            raise MemoryError("no room")


def plan(step_id: int) -> StepPlan:
    one = np.ones(1, dtype=np.int32)
    return StepPlan(
        step_id=step_id,
        slots=one,
        starts=one,
        num_tokens=one,
        num_drafts=one,
        samples=np.ones(1, dtype=np.bool_),
        epochs=one,
        request_ids=one.astype(np.int64),
    )


@pytest.fixture
def runner() -> Scripted:
    return Scripted()


@pytest.fixture
def executor(runner: Scripted) -> Iterator[Executor]:
    made = Executor(runner, lambda: float(len(runner.done)))
    yield made
    runner.may_go_on.set()
    made.close()


def test_a_step_that_does_not_overlap_is_computed_by_who_collects_it(
    runner: Scripted, executor: Executor
) -> None:
    step = executor.submit(plan(0), overlaps=False)
    assert runner.done == []
    assert executor.collect(step).tokens.tolist() == [[0]]
    assert runner.threads == {threading.current_thread().name}
    assert (step.started_s, step.forwarded_s, step.sampled_s) == (0, 1, 2)


def test_the_caller_goes_on_while_overlapping_steps_are_computed_in_their_order(
    runner: Scripted, executor: Executor
) -> None:
    runner.may_go_on.clear()
    first = executor.submit(plan(0), overlaps=True)
    second = executor.submit(plan(1), overlaps=True)
    assert runner.done == []
    runner.may_go_on.set()
    assert executor.collect(first).step_id == 0
    third = executor.submit(plan(2), overlaps=True)
    assert [executor.collect(step).step_id for step in (second, third)] == [1, 2]
    assert runner.done == [(call, step) for step in range(3) for call in ("forward", "sample")]
    assert runner.threads == {"paceline-steps"}


def test_an_overlapping_step_that_is_alone_may_be_followed_by_another_kind(
    executor: Executor,
) -> None:
    for number, overlaps in enumerate([True, False, True, False]):
        step = executor.submit(plan(number), overlaps=overlaps)
        assert executor.collect(step).step_id == number


@pytest.mark.parametrize("call", ["forward", "sample"])
def test_what_was_submitted_behind_a_failed_step_is_not_computed(
    runner: Scripted, executor: Executor, call: str
) -> None:
    runner.fails_in = (call, 1)
    steps = [executor.submit(plan(number), overlaps=True) for number in range(4)]
    assert executor.collect(steps[0]).step_id == 0
    with pytest.raises(MemoryError, match="no room"):
        executor.collect(steps[1])
    executor.discard()
    assert all(isinstance(step.error, StepNotComputed) for step in steps[2:])
    assert {number for _, number in runner.done} == {0, 1}
    again = executor.submit(plan(4), overlaps=True)
    assert executor.collect(again).step_id == 4


def test_a_failure_without_a_thread_leaves_nothing_behind(
    runner: Scripted, executor: Executor
) -> None:
    runner.fails_in = ("sample", 0)
    step = executor.submit(plan(0), overlaps=False)
    with pytest.raises(MemoryError):
        executor.collect(step)
    executor.discard()
    assert executor.collect(executor.submit(plan(1), overlaps=True)).step_id == 1


def test_steps_come_back_in_their_order_alone(executor: Executor) -> None:
    first = executor.submit(plan(0), overlaps=True)
    second = executor.submit(plan(1), overlaps=True)
    with pytest.raises(RuntimeError, match="not the oldest"):
        executor.collect(second)
    with pytest.raises(RuntimeError, match="does not overlap"):
        executor.submit(plan(2), overlaps=False)
    executor.collect(first)
    executor.collect(second)


def test_a_closed_executor_has_no_thread(runner: Scripted) -> None:
    executor = Executor(runner, lambda: 0.0)
    before = threading.active_count()
    executor.collect(executor.submit(plan(0), overlaps=True))
    assert threading.active_count() == before + 1
    executor.close()
    executor.close()
    assert threading.active_count() == before

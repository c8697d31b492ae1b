"""Who computes planned steps: whoever collects them, or a thread while the next step is planned.

The thread has the runner to itself and computes plans in their order, each from its changes of the
batch to its tokens, so step n + 1 finds what step n sampled where it always stands: in the batch. A
row whose input nobody knew when it was planned needs nothing else. One call into the kernels (or a
wait for a device) computes a step, and leaves the interpreter to the caller meanwhile.
"""

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import StepPlan, StepResult


class StepRunner(Protocol):
    """What computes a plan. `sample` belongs to the last `forward`."""

    @property
    def limits(self) -> EngineLimits:
        """What the scheduler must know."""
        ...

    def forward(self, plan: StepPlan) -> None:
        """Apply the plan's changes to the batch and compute it."""
        ...

    def sample(self) -> StepResult:
        """The tokens of the last plan."""
        ...

    def do_spare_work(self) -> bool:
        """Do a piece of work that may wait, since no request is there; whether more is left."""
        ...


class StepNotComputed(RuntimeError):
    """A step before it failed, so what the runner has is not what this one was planned on."""


@dataclass(slots=True, kw_only=True, eq=False)
class SubmittedStep:
    """A step on its way. Its executor alone writes to it, and nobody reads before `collect`.

    Attributes:
        plan: what is computed.
        started_s, forwarded_s, sampled_s: when it began, had logits, had tokens; NaN before.
        result: None before, and where it failed.
        error: why it failed.
    """

    plan: StepPlan
    started_s: float = math.nan
    forwarded_s: float = math.nan
    sampled_s: float = math.nan
    result: StepResult | None = None
    error: BaseException | None = None


class Executor:
    """Computes plans of one runner in their order. One thread calls its methods.

    Steps that are not to overlap are computed by `collect`, without a thread's detours.

    Args:
        runner: left alone by everybody else while a step is outstanding.
        clock: seconds, for the times of steps; called on both threads.
    """

    def __init__(self, runner: StepRunner, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._clock = clock
        self._outstanding: deque[SubmittedStep] = deque()
        self._is_threaded = False  # the outstanding steps are the thread's
        self._thread: threading.Thread | None = None
        self._to_do: SimpleQueue[SubmittedStep | None] = SimpleQueue()
        self._done: SimpleQueue[SubmittedStep] = SimpleQueue()
        self._has_failed = False  # the thread's, until it has nothing to do

    def submit(self, plan: StepPlan, *, overlaps: bool) -> SubmittedStep:
        """Take the next plan.

        Args:
            plan: of the scheduler; nobody changes its arrays afterwards.
            overlaps: the thread begins with it now, or as soon as it is done with those before.

        Raises:
            RuntimeError: a step is outstanding that is not the thread's, or would wait behind it.
        """
        if self._outstanding and not (overlaps and self._is_threaded):
            raise RuntimeError(f"step {plan.step_id} does not overlap with those outstanding")
        step = SubmittedStep(plan=plan)
        self._outstanding.append(step)
        self._is_threaded = overlaps
        if overlaps:
            self._start_thread()
            self._to_do.put(step)
        return step

    def collect(self, step: SubmittedStep) -> StepResult:
        """The result of the oldest outstanding step; waits for it, or computes it.

        Raises:
            BaseException: whatever stopped it. Those submitted behind it are not computed but
                `discard`ed.
        """
        if not self._outstanding or self._outstanding[0] is not step:
            raise RuntimeError(f"step {step.plan.step_id} is not the oldest outstanding one")
        self._outstanding.popleft()
        if self._is_threaded:
            self._done.get()
        else:
            self._compute(step)
        if step.error is not None:
            raise step.error
        assert step.result is not None
        return step.result

    def discard(self) -> None:
        """After a failure: forget the steps behind it, once the thread has let go of them."""
        for _ in self._outstanding:
            if self._is_threaded:
                self._done.get()
        self._outstanding.clear()
        self._has_failed = False

    def close(self) -> None:
        """End the thread once it has computed what it was given."""
        if self._thread is not None:
            self._to_do.put(None)
            self._thread.join()
            self._thread = None

    def _compute(self, step: SubmittedStep) -> None:
        try:
            step.started_s = self._clock()
            self._runner.forward(step.plan)
            step.forwarded_s = self._clock()
            step.result = self._runner.sample()
            step.sampled_s = self._clock()
        except BaseException as error:  # `collect` raises it
            step.error = error

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="paceline-steps", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (step := self._to_do.get()) is not None:
            if self._has_failed:
                step.error = StepNotComputed("the step before it failed")
            else:
                self._compute(step)
                self._has_failed = step.error is not None
            self._done.put(step)

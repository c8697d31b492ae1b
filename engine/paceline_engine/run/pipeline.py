"""Steps on their way from plan to result: one after the other, or the next planned while one runs.

With `overlap` the scheduler plans step n + 1, and the client is told what step n - 1 gave, while
step n is computed; a plan so made knows nothing of n's tokens. A step whose rows may yield several
tokens (it has drafts, or asks for some that the next one verifies) is nobody's neighbour: where its
requests go on is known when it is done.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from paceline_engine.core import step_features
from paceline_engine.core.plan import StepOutputs, StepPlan
from paceline_engine.core.scheduler import Scheduler
from paceline_engine.core.stats import Recorder
from paceline_engine.core.step_features import StepFeatures
from paceline_engine.core.step_record import StepRecord
from paceline_engine.run.executor import Executor, StepNotComputed, StepRunner, SubmittedStep

MAX_OUTSTANDING = 2
"""Plans without results: more would let arrivals wait longer and gain nothing."""


class StepFailed(Exception):
    """A step failed; it, and those planned on top of it, are taken back already.

    Attributes:
        plan: the one at fault.
        why: in a line.
    """

    def __init__(self, plan: StepPlan, error: Exception) -> None:
        self.plan = plan
        self.why = f"{type(error).__name__}: {error}"
        super().__init__(self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outstanding:
    """A step without result.

    Attributes:
        submitted: of the executor.
        sizes, predicted_ms: what was expected of it.
        began_s, planned_s: when its planning began and ended.
        overlaps: it is computed while the loop does something else.
    """

    submitted: SubmittedStep
    sizes: StepFeatures
    predicted_ms: float
    began_s: float
    planned_s: float
    overlaps: bool


class StepPipeline:
    """Plans, has computed and applies the steps of one scheduler and one runner."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        recorder: Recorder,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._recorder = recorder
        self._clock = clock
        self._executor = Executor(runner, clock)
        self._outstanding: deque[_Outstanding] = deque()
        self._step_ended: float | None = None  # the last one, if nothing but it led to the next

    @property
    def is_empty(self) -> bool:
        """No step waits for its result."""
        return not self._outstanding

    @property
    def predicted_ms(self) -> float:
        """Time until the outstanding steps are done, if nothing of them is yet."""
        return sum(step.predicted_ms for step in self._outstanding)

    def fill(self, now: float) -> list[StepPlan]:
        """Plan as many steps as may be outstanding; the new ones."""
        plans: list[StepPlan] = []
        while self._may_plan():
            began = self._clock() if self._outstanding else now
            plan = self._scheduler.plan(began)
            if plan is None:
                break
            plans.append(plan)
            sizes = step_features.of(plan)
            planned = self._clock()
            # What yields several tokens stands alone; the thread would only be a detour.
            overlaps = bool(self._outstanding) or (
                self._scheduler.settings.overlap and not _has_drafts(plan)
            )
            self._outstanding.append(
                _Outstanding(
                    submitted=self._executor.submit(plan, overlaps=overlaps),
                    sizes=sizes,
                    predicted_ms=self._scheduler.predict_ms(sizes)
                    + self._scheduler.predict_copies_ms(plan),
                    began_s=began,
                    planned_s=planned,
                    overlaps=overlaps,
                )
            )
        if not self._outstanding:
            self._step_ended = None
        return plans

    def land(self) -> tuple[StepOutputs, float]:
        """Wait for the oldest outstanding step and put its result in force.

        Returns:
            What it gave, and when it was in force.

        Raises:
            StepFailed: every outstanding step was taken back.
        """
        step = self._outstanding.popleft()
        try:
            result = self._executor.collect(step.submitted)
        except Exception as error:
            self._take_back(step, error)
            raise StepFailed(step.submitted.plan, error) from error
        collected = self._clock()
        outputs = self._scheduler.apply(result, collected)
        applied = self._clock()
        since = step.began_s if self._step_ended is None else self._step_ended
        copies_ms = result.store_ms + result.load_ms
        self._scheduler.learn(step.sizes, (applied - since) * 1e3 - copies_ms)
        self._step_ended = applied
        self._record(step, applied - collected)
        return outputs, applied

    def close(self) -> None:
        """End the executor's thread."""
        self._executor.close()

    def _may_plan(self) -> bool:
        if not self._outstanding:
            return True
        if not self._scheduler.settings.overlap or len(self._outstanding) >= MAX_OUTSTANDING:
            return False
        newest = self._outstanding[-1]
        return newest.overlaps and not _has_drafts(newest.submitted.plan)

    def _record(self, step: _Outstanding, apply_s: float) -> None:
        submitted, recorder = step.submitted, self._recorder
        plan_s = step.planned_s - step.began_s
        recorder.loop_time("schedule", plan_s)
        recorder.loop_time("apply", apply_s)
        record = recorder.last_step
        if record is None or record.step_id != submitted.plan.step_id:
            return
        record.plan_ms = plan_s * 1e3
        if step.overlaps:
            record.queued_ms = max(0.0, submitted.started_s - step.planned_s) * 1e3
        record.forward_ms = (submitted.forwarded_s - submitted.started_s) * 1e3
        record.sample_ms = (submitted.sampled_s - submitted.forwarded_s) * 1e3
        record.apply_ms = apply_s * 1e3
        if record.predicted_ms is None:
            record.predicted_ms = step.predicted_ms

    def _take_back(self, failed: _Outstanding, error: Exception) -> None:
        """The failed step and those planned on top of it never happened."""
        self._executor.discard()
        self._step_ended = None
        why: Exception = error
        while True:
            self._note_failure(failed, why)
            self._scheduler.fail_step(failed.submitted.plan.step_id)
            if not self._outstanding:
                return
            why = StepNotComputed(f"step {failed.submitted.plan.step_id} before it failed")
            failed = self._outstanding.popleft()

    def _note_failure(self, step: _Outstanding, error: Exception) -> None:
        now = self._clock()
        plan = step.submitted.plan
        self._recorder.step_failed(
            StepRecord(
                step_id=plan.step_id,
                planned_s=step.planned_s,
                applied_s=now,
                budget_tokens=0,
                num_rows=len(plan.slots),
                num_prefill_tokens=step.sizes.num_prefill_tokens,
                num_decode_tokens=step.sizes.num_decode_tokens,
                forward_ms=(now - step.planned_s) * 1e3,
                error=f"{type(error).__name__}: {error}",
            )
        )


def _has_drafts(plan: StepPlan) -> bool:
    return plan.max_drafts > 0 or len(plan.draft_tokens) > 0

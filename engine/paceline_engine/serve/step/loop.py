"""The step loop: between two steps it takes messages, plans, and applies what a step gave.

It owns no socket and no clock: a transport hands it messages and takes what it publishes, so the
step process and the in-process client of the tests run the same code.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import msgspec
import numpy as np

from paceline_engine.core.errors import EngineError, SettingRefused
from paceline_engine.core.live_settings import SettingsBook
from paceline_engine.core.plan import StepOutputs
from paceline_engine.core.request import Finished, Refusal
from paceline_engine.core.scheduler import Scheduler
from paceline_engine.core.stats import Recorder
from paceline_engine.run.executor import StepRunner
from paceline_engine.run.pipeline import StepFailed, StepPipeline
from paceline_engine.serve.admin import flight_recorder
from paceline_engine.serve.step import token_bounds
from paceline_engine.serve.step.engine_client import Heartbeat
from paceline_engine.serve.step.messages import (
    Abort,
    Answer,
    Ask,
    CallRefused,
    Finish,
    FromEngine,
    Patch,
    Stop,
    Submit,
    ToEngine,
    Turn,
)

log = logging.getLogger(__name__)

MAX_RETRIES = 2
"""A step that failed is tried again so often before its requests end with an error."""
MAX_FAILURES = 2 * (MAX_RETRIES + 1)
"""So many failures without a finished step between them: the device is broken."""
STATS_EVERY_S = 0.1
BLOCKED_WAIT_S = 0.005


class DeviceBroken(EngineError):
    """Steps keep failing, whatever is in them: the process has to end."""


class StepLoop:
    """Drives one scheduler and one runner.

    Attributes:
        heartbeat: progress, as also given to `beat`.
        is_stopping: a client asked the loop to end.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        recorder: Recorder,
        book: SettingsBook,
        *,
        clock: Callable[[], float],
        publish: Callable[[FromEngine], None],
        beat: Callable[[Heartbeat], None] = lambda _: None,
    ) -> None:
        self.is_stopping = False
        self._scheduler = scheduler
        self._runner = runner
        self._recorder = recorder
        self._book = book
        self._clock = clock
        self._publish = publish
        self._beat = beat
        self._pipeline = StepPipeline(scheduler, runner, recorder, clock)
        self._num_failures = 0
        self._accepted: list[int] = []
        self._refused: list[tuple[int, Refusal]] = []
        self._finished: list[Finished] = []
        self._is_stats_stale = True
        self._has_ended_some = True
        self._has_spare_work = True
        self._stats_at_s = clock()
        self.heartbeat = Heartbeat(
            last_progress_s=self._stats_at_s, has_work=False, predicted_step_s=0.0
        )
        beat(self.heartbeat)

    def handle(self, message: ToEngine) -> None:
        """Take one message, between two steps."""
        now = self._clock()
        match message:
            case Submit(request=request):
                refusal = token_bounds.refuse_outside(request, self._runner.limits.vocab_size)
                refusal = refusal or self._scheduler.submit(request, now)
                if refusal is None:
                    self._accepted.append(request.request_id)
                else:
                    self._refused.append((request.request_id, refusal))
                self._is_stats_stale = True
            case Abort(request_id=request_id):
                self._end(self._scheduler.abort(request_id, now))
                self._has_ended_some = True
            case Finish(request_id=request_id, num_output_tokens=num_tokens, stop=stop):
                self._end(
                    self._scheduler.finish(request_id, num_tokens, now, found_stop=bool(stop))
                )
                self._has_ended_some = True
            case Patch():
                self._publish(self._patch(message))
            case Ask(call_id=call_id, what=what, limit=limit):
                self._publish(Answer(call_id, self._answer(what, limit, now)))
            case Stop():
                self.is_stopping = True

    def turn(self) -> bool:
        """Wait for at most one step and publish what it gave; False when nothing could be computed.

        Raises:
            DeviceBroken: steps keep failing.
        """
        started = self._clock()
        for finished in self._scheduler.expire(started):
            self._end(finished)
        self._pipeline.fill(started)
        if self._pipeline.is_empty:
            self._idle(started)
            return False
        self._beat_work(self._clock(), self._pipeline.predicted_ms)
        try:
            outputs, applied = self._pipeline.land()
        except StepFailed as failed:
            self._fail(failed)
            return True
        self._num_failures = 0
        for finished in outputs.finished:
            self._end(finished)
        self._is_stats_stale = True
        self._beat_progress(applied)
        self._publish_turn(outputs, applied)
        return True

    def close(self) -> None:
        """Nothing is asked of the loop any longer."""
        self._pipeline.close()

    def wait_s(self) -> float | None:
        """After a turn that computed nothing: how long to wait for a message; None = for ever."""
        if self._scheduler.has_work:
            return BLOCKED_WAIT_S
        if self._has_spare_work:
            return 0.0
        if self._is_stats_stale:
            return max(0.0, self._stats_at_s + STATS_EVERY_S - self._clock())
        return None

    def _fail(self, failed: StepFailed) -> None:
        """A step was taken back; end its requests when trying again did not help."""
        now = self._clock()
        plan, why = failed.plan, failed.why
        self._num_failures += 1
        message = f"the engine failed in step {plan.step_id}: {why}"
        log.error(
            "%s (failure %d in a row)", message, self._num_failures, exc_info=failed.__cause__
        )
        if self._num_failures % (MAX_RETRIES + 1) == 0:
            for request_id in plan.request_ids.tolist():
                self._end(self._scheduler.fail(request_id, message, now))
        self._is_stats_stale = True
        self._publish_turn(None, now)
        if self._num_failures >= MAX_FAILURES:
            raise DeviceBroken(f"{self._num_failures} steps failed in a row, the last with {why}")

    def _idle(self, now: float) -> None:
        if not self._scheduler.has_work:
            if self.heartbeat.has_work:
                self._has_ended_some = True  # idle begins: gauges are read as they are now
            self._set_heartbeat(Heartbeat(last_progress_s=now, has_work=False, predicted_step_s=0))
            self._has_spare_work = self._has_spare_work and self._runner.do_spare_work()
        elif not self.heartbeat.has_work:
            self._beat_work(now, 0.0)
        self._publish_turn(None, now)

    def _end(self, finished: Finished | None) -> None:
        if finished is not None:
            self._finished.append(finished)
            self._has_ended_some = True

    def _patch(self, message: Patch) -> FromEngine:
        try:
            change = self._book.patch(message.changes, message.revision)
        except SettingRefused as refused:
            return CallRefused(message.call_id, refused.status, refused.field, str(refused))
        state = self._book.state
        self._scheduler.apply_settings(state.settings)
        self._recorder.settings_applied(
            state.settings, generation=state.generation, revision=state.revision
        )
        self._is_stats_stale = True
        return Answer(message.call_id, asdict(change))

    def _answer(self, what: str, limit: int, now: float) -> Any:
        match what:
            case "settings":
                state = self._book.state
                return {
                    "settings": state.settings.on_border(),
                    "generation": state.generation,
                    "revision": state.revision,
                }
            case "requests":
                return flight_recorder.rows(self._scheduler.describe(now))
            case "steps":
                return flight_recorder.rows(self._recorder.steps(limit))
            case "recording":
                return self._recorder.recording()
            case "reset_prefix_cache":
                return self._scheduler.reset_prefix_cache()
        raise AssertionError(f"unknown question {what!r}")

    def _publish_turn(self, outputs: StepOutputs | None, now: float) -> None:
        """Send what this turn gave, in one message; nothing when there is nothing to say."""
        stats = b""
        if self._has_ended_some or (
            self._is_stats_stale and now - self._stats_at_s >= STATS_EVERY_S
        ):
            stats = msgspec.msgpack.encode(self._recorder.snapshot(now))
            self._stats_at_s = now
            self._is_stats_stale = self._has_ended_some = False
        if outputs is None and not (self._accepted or self._refused or self._finished or stats):
            return
        if outputs is None:
            outputs = _NO_OUTPUTS
        self._publish(
            Turn(
                accepted=self._accepted,
                refused=self._refused,
                request_ids=outputs.request_ids.tobytes(),
                tokens=outputs.tokens.tobytes(),
                width=outputs.tokens.shape[1],
                logprobs=outputs.logprobs,
                prompt_logprobs=outputs.prompt_logprobs,
                finished=self._finished,
                num_cached_tokens=outputs.num_cached_tokens,
                stats=stats,
            )
        )
        self._accepted, self._refused, self._finished = [], [], []

    def _beat_work(self, now: float, predicted_ms: float) -> None:
        """A step begins. Waking up from idleness counts as progress, else waiting would not."""
        since = self.heartbeat.last_progress_s if self.heartbeat.has_work else now
        self._set_heartbeat(
            Heartbeat(last_progress_s=since, has_work=True, predicted_step_s=predicted_ms / 1e3)
        )

    def _beat_progress(self, now: float) -> None:
        self._set_heartbeat(replace(self.heartbeat, last_progress_s=now))

    def _set_heartbeat(self, heartbeat: Heartbeat) -> None:
        self.heartbeat = heartbeat
        self._beat(heartbeat)


_NO_OUTPUTS = StepOutputs(
    step_id=-1,
    request_ids=np.empty(0, dtype=np.int64),
    tokens=np.empty((0, 1), dtype=np.int32),
)

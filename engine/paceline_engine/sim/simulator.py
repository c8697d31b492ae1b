"""The simulator: the scheduler that serves, under a cost model and simulated time.

Events are arrivals and ends of steps. As in the engine's loop, whatever came while a step ran is
taken between that step and the next. No clock and no randomness of its own: the same arguments give
the same run.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np

from paceline_crds.settings import Batching, EngineSettings, SchedulingPolicy
from paceline_engine.core import step_features
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.live_settings import SettingsBook, SettingsChange
from paceline_engine.core.plan import Int32, StepPlan, StepResult
from paceline_engine.core.request import Request, SamplingParams
from paceline_engine.core.scheduler import Scheduler
from paceline_engine.core.snapshot import StatsSnapshot
from paceline_engine.core.stats import Recorder
from paceline_engine.core.step_features import StepFeatures
from paceline_engine.core.step_record import StepRecord
from paceline_engine.sim.arrivals import Arrivals
from paceline_engine.sim.drafts import Drafts, num_accepted
from paceline_engine.sim.dual_track import DualTrackScheduler
from paceline_engine.sim.jitter import Jitter
from paceline_engine.sim.ledger import Ledger
from paceline_engine.sim.requests import END_TOKEN, OUTPUT_TOKEN
from paceline_engine.sim.step_cost import StepCost
from paceline_engine.sim.timeline import Point, Timeline

_RETRY_S = 0.005
"""As in the engine's loop: when nothing can be planned though requests are there."""
_MAX_RETRIES = 100_000
_NEVER = -1


class Policy(StrEnum):
    """How steps are made: the engine's way, or one of the ways that it is compared with."""

    CONTINUOUS = "Continuous"
    STATIC = "Static"
    DUAL_TRACK = "DualTrack"
    FAIR = "Fair"
    """As Continuous, under the scheduling policy of that name."""


class SimulationStuck(RuntimeError):
    """Requests are there, none arrives, and no step can be planned."""


class Simulator:
    """One engine under simulated load. Mutable; advance it in slices as large as you like.

    Args:
        settings: as the engine would be started with; what no release builds is not refused here,
            and `overlap` does nothing: steps follow one another.
        limits: what the engine has; `limits_of` makes them from the settings.
        cost: how long a step takes.
        arrivals: the load.
        policy: how steps are made. `Static` and `Fair` are the engine's own settings.
        jitter: factors on the time of steps; None: a step takes what the cost model says.
        drafts: proposes drafts where the settings ask for some; None: nobody does.
        host_ms: of each step's time, what is spent outside of the device.
        startup_s: seconds of the phases of its start, for the metrics.
        start_s: where simulated time begins.

    Attributes:
        now: simulated seconds.
        ledger: what clients saw, for reports.
        timeline: the course of the run, for plots.
    """

    def __init__(
        self,
        settings: EngineSettings,
        limits: EngineLimits,
        cost: StepCost,
        arrivals: Arrivals,
        *,
        policy: Policy = Policy.CONTINUOUS,
        jitter: Jitter | None = None,
        drafts: Drafts | None = None,
        host_ms: float = 0.0,
        startup_s: Mapping[str, float] | None = None,
        start_s: float = 0.0,
    ) -> None:
        if policy is Policy.STATIC:
            settings = settings.model_copy(update={"batching": Batching.STATIC})
        if policy is Policy.FAIR:
            settings = settings.model_copy(update={"scheduling_policy": SchedulingPolicy.FAIR})
        self._book = SettingsBook(settings)
        in_force = self._book.state.settings
        self.now = start_s
        self.ledger = Ledger()
        self.timeline = Timeline()
        self._recorder = Recorder(in_force, limits)
        self._recorder.startup(startup_s or {}, {})
        kind = DualTrackScheduler if policy is Policy.DUAL_TRACK else Scheduler
        self._scheduler = kind(in_force, limits, self._recorder)
        self._cost, self._arrivals, self._jitter = cost, arrivals, jitter
        self._drafts, self._host_ms = drafts, host_ms
        self._plan: StepPlan | None = None
        self._sizes: StepFeatures | None = None
        self._step_end_s = self._step_ms = 0.0
        self._num_retries = 0
        self._outputs = np.full((limits.max_slots, 1), OUTPUT_TOKEN, dtype=np.int32)
        self._stop_at = np.full(
            1024, _NEVER, dtype=np.int64
        )  # by request id: C when it yields its last
        self._num_stopping = self._num_preemptions = 0

    # -- what there is -----------------------------------------------------------------------

    @property
    def settings(self) -> EngineSettings:
        """The settings in force."""
        return self._book.state.settings

    @property
    def num_running(self) -> int:
        """Requests with a slot."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Requests without one."""
        return self._scheduler.num_waiting

    @property
    def is_done(self) -> bool:
        """Nothing runs, and nobody comes any more."""
        return not self._scheduler.has_work and self._arrivals.next_s is None

    def snapshot(self) -> StatsSnapshot:
        """All metrics at this moment, counters since the start: what a scrape would see."""
        return self._recorder.snapshot(self.now)

    def steps(self, limit: int) -> list[dict[str, Any]]:
        """The flight recorder: the last steps, oldest first."""
        return self._recorder.steps(limit)

    def recording(self) -> dict[str, dict[str, list[Any]]]:
        """All that is kept of ended requests and steps, as the engine records them."""
        return self._recorder.recording()

    def check(self) -> None:
        """Verify the scheduler's invariants; for tests.

        Raises:
            AssertionError: one does not hold.
        """
        self._scheduler.check()

    # -- time --------------------------------------------------------------------------------

    def advance(self, until_s: float) -> None:
        """Let time pass; a step that ends after `until_s` stays in flight.

        Raises:
            SimulationStuck: see there.
        """
        while self._turn(until_s):
            pass
        self.now = max(self.now, until_s)

    def run(self) -> None:
        """Let time pass until every request has ended. The load must not be endless."""
        while self._turn(float("inf")):
            pass

    def apply_settings(
        self, changes: Mapping[str, Any], revision: int | None = None
    ) -> SettingsChange:
        """Change live settings now, by the rules of the live settings API, all or nothing.

        Args:
            changes: camelCase name -> JSON value.
            revision: the writer's; None is the next one.

        Raises:
            SettingRefused: nothing has changed (`core.live_settings`).
        """
        change = self._book.patch(changes, revision)
        state = self._book.state
        self._scheduler.apply_settings(state.settings)
        self._recorder.settings_applied(
            state.settings, generation=state.generation, revision=state.revision
        )
        return change

    # -- inside ------------------------------------------------------------------------------

    def _turn(self, until_s: float) -> bool:
        """The next event up to `until_s`; False if there is none."""
        if self._plan is not None:
            if self._step_end_s > until_s:
                return False
            self._end_step(self._plan)
        self._take_arrivals()
        for finished in self._scheduler.expire(self.now):
            self._end(finished.request_id)
            self.ledger.ended(finished, self.now)
        plan = self._scheduler.plan(self.now)
        if plan is not None:
            self._begin_step(plan)
            return True
        wake_s = self._arrivals.next_s
        if self._scheduler.has_work:
            wake_s = self._retry_s(wake_s)
        if wake_s is None or wake_s > until_s:
            return False
        self.now = max(self.now, wake_s)
        return True

    def _retry_s(self, next_arrival_s: float | None) -> float:
        self._num_retries += 1
        if self._num_retries > _MAX_RETRIES:
            raise SimulationStuck(
                f"{self.num_waiting} requests wait and {self.num_running} run at {self.now:.3f} s, "
                "but no step can be planned"
            )
        retry_s = self.now + _RETRY_S
        return retry_s if next_arrival_s is None else min(retry_s, next_arrival_s)

    def _take_arrivals(self) -> None:
        arrivals, now = self._arrivals, self.now
        while (next_s := arrivals.next_s) is not None and next_s <= now:
            asked = arrivals.pop()
            number = self.ledger.arrived(asked)
            refusal = self._scheduler.submit(
                Request(
                    request_id=number,
                    external_id="",
                    prompt_token_ids=asked.prompt_token_ids,
                    params=SamplingParams(temperature=0.0, max_tokens=asked.max_tokens),
                    priority=asked.priority,
                    tenant=asked.tenant,
                    arrival_s=asked.arrival_s,
                ),
                now,
            )
            if refusal is not None:
                self.ledger.refused(number, refusal, now)
                arrivals.ended(now + (refusal.retry_after_s or 0))
                continue
            if number >= len(self._stop_at):
                self._stop_at = np.concatenate((self._stop_at, np.full_like(self._stop_at, _NEVER)))
            if asked.num_output_tokens < asked.max_tokens:
                before_last = max(1, asked.num_output_tokens) - 1
                self._stop_at[number] = len(asked.prompt_token_ids) + before_last
                self._num_stopping += 1

    def _begin_step(self, plan: StepPlan) -> None:
        self._num_retries = 0
        sizes = step_features.of(plan)
        took_ms = self._cost.predict_ms(sizes)
        if self._jitter is not None:
            took_ms *= self._jitter.next()
        self._plan, self._sizes, self._step_ms = plan, sizes, took_ms
        self._step_end_s = self.now + took_ms / 1e3

    def _end_step(self, plan: StepPlan) -> None:
        self._plan = None
        self.now = now = self._step_end_s
        host_ms = min(self._host_ms, self._step_ms)
        result = StepResult(
            step_id=plan.step_id,
            tokens=self._tokens(plan),
            drafts=self._drafts.propose(plan) if self._drafts is not None else None,
            host_ms=host_ms,
            device_ms=self._step_ms - host_ms,
        )
        outputs = self._scheduler.apply(result, now)
        assert self._sizes is not None, "a step was begun"
        self._scheduler.learn(self._sizes, self._step_ms)
        self.ledger.tokens(outputs, now)
        for finished in outputs.finished:
            self.ledger.ended(finished, now)
            self._end(finished.request_id)
        record = self._recorder.last_step
        assert record is not None, "a step was applied"
        self._num_preemptions += record.num_preempted
        if self.timeline.is_due:
            self._note_point(record)

    def _tokens(self, plan: StepPlan) -> Int32:
        """[rows, width] what the model says: the constant, and the end where a request stops."""
        if len(plan.draft_tokens):
            return self._tokens_behind_drafts(plan)
        same = self._outputs[: len(plan.slots)]
        if not self._num_stopping:
            return same
        stops = self._stop_at[plan.request_ids] == plan.starts + plan.num_tokens
        if not np.count_nonzero(stops):
            return same
        tokens = same.copy()
        tokens[stops] = END_TOKEN
        return tokens

    def _tokens_behind_drafts(self, plan: StepPlan) -> Int32:
        """[rows, width] accepted drafts and the token behind them, -1 behind those."""
        counts = num_accepted(plan) + 1
        places = np.arange(int(counts.max()), dtype=np.int32)
        is_given = (places < counts[:, None]) & plan.samples[:, None]
        tokens = np.where(is_given, np.int32(OUTPUT_TOKEN), np.int32(-1))
        computed = (plan.starts + plan.num_tokens - plan.num_drafts)[:, None] + places
        stops = self._stop_at[plan.request_ids][:, None] == computed
        tokens[stops & is_given] = END_TOKEN
        return tokens

    def _end(self, number: int) -> None:
        if self._stop_at[number] != _NEVER:
            self._num_stopping -= 1
        self._arrivals.ended(self.now)

    def _note_point(self, record: StepRecord) -> None:
        blocks = record.blocks_active + record.blocks_cached + record.blocks_free
        self.timeline.add(
            Point(
                at_s=self.now,
                num_running=record.num_running,
                num_waiting=record.num_waiting,
                kv_share=record.blocks_active / blocks,
                step_ms=self._step_ms,
                num_preemptions=self._num_preemptions,
            )
        )

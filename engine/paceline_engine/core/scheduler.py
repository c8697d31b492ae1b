"""The scheduler: requests in, step plans out, results in, tokens and ends out.

There is no prefill phase and no decode phase: a request has tokens that are not computed yet. A
plan takes running requests first, then waiting ones, under a token budget, a limit of sequences and
the free blocks. What did not change since the last step costs a few numpy calls, not Python per
request. `now` is seconds on a monotonic clock, always an argument.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from paceline_crds.knob import ChangeClass
from paceline_crds.settings import EngineSettings, knobs
from paceline_engine.core import admission, endings, intake, invariants, planner, results
from paceline_engine.core.admission import ExpectedOutput
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import StepOutputs, StepPlan, StepResult
from paceline_engine.core.request import Finished, FinishReason, Refusal, Request
from paceline_engine.core.state import SchedulerState
from paceline_engine.core.stats import Recorder
from paceline_engine.core.step_features import StepFeatures
from paceline_engine.core.tracked import RequestState, TrackedRequest


class Scheduler:
    """Decides what each step computes. Mutable; owned by one step loop.

    Args:
        settings: checked by `unsupported.refuse_at_start` before.
        limits: what the engine has.
        recorder: is told what requests and steps do.
        expected: what is known of lengths of outputs at the start; nothing if it is left out.
        gives_all_back: preempted requests keep nothing and the last is the first victim, as in
            other engines; to compare with.
        max_plans: plans that may be outstanding; 1 = plan, run, apply.
    """

    def __init__(
        self,
        settings: EngineSettings,
        limits: EngineLimits,
        recorder: Recorder,
        *,
        max_plans: int = 1,
        expected: ExpectedOutput | None = None,
        gives_all_back: bool = False,
    ) -> None:
        self._state = SchedulerState(
            settings,
            limits,
            recorder,
            expected or ExpectedOutput(),
            gives_all_back=gives_all_back,
        )
        recorder.attach(
            self._state.pool.usage, self._waiting_reasons, self._virtual_tokens, self._host_usage
        )
        self._max_plans = max_plans
        self._num_arrivals = 0

    # -- what there is -----------------------------------------------------------------------

    @property
    def settings(self) -> EngineSettings:
        """The settings in force."""
        return self._state.settings

    @property
    def has_work(self) -> bool:
        """A request has not ended, or a plan waits for its result."""
        return bool(self._state.requests) or bool(self._state.in_flight)

    @property
    def num_running(self) -> int:
        """Requests with a slot."""
        return self._state.slots.num_seated

    @property
    def num_waiting(self) -> int:
        """Requests without one, preempted ones too."""
        return len(self._state.queue)

    def usage(self) -> tuple[int, int, int, int]:
        """Blocks (active, cached, free, held); they sum up to num_blocks - 1."""
        return self._state.pool.usage()

    # -- requests ----------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> Refusal | None:
        """Take a request into the queue, or say why not."""
        state, params = self._state, request.params
        num_tokens = len(request.prompt_token_ids)
        limits = state.limits
        limit = min(num_tokens + params.max_tokens, limits.max_model_len)
        num_blocks: int | None = None
        refusal = admission.refuse_misfit(num_tokens, params.max_tokens, limits.max_model_len)
        if (
            refusal is None
            and (num_blocks := intake.blocks_to_start(state, num_tokens, limit, request.tenant))
            is None
        ):
            refusal = intake.refuse_when_full(state, num_tokens, request.tenant, now)
        if refusal is not None:
            if refusal.status == admission.OVER_PART:
                state.recorder.tenant_refused(request.tenant)
            return refusal
        assert request.request_id not in state.requests, f"request {request.request_id} twice"
        chain = state.cache.chain(
            request.request_id,
            salt=request.cache_salt,
            # Tenants do not read from the time to first token what others asked.
            tenant=request.tenant if state.settings.tenants and not request.cache_salt else "",
        )
        tracked = TrackedRequest(request, self._num_arrivals, limit, chain)
        self._num_arrivals += 1
        state.requests[request.request_id] = tracked
        if state.fair is not None:
            state.settle()
            state.fair.arrived(tracked, state.slots)
        state.queue.push(tracked)
        if num_blocks is not None:
            state.queue.starters.add(request.request_id, num_blocks, num_tokens)
        state.recorder.request_arrived(request)
        state.is_intake_due = True
        return None

    def abort(self, request_id: int, now: float) -> Finished | None:
        """The client went away; None if the request is unknown or has ended."""
        tracked = self._state.requests.get(request_id)
        if tracked is None:
            self._state.recorder.request_settled(request_id)
            return None
        return endings.end(self._state, tracked, FinishReason.ABORT, now)

    def fail(self, request_id: int, message: str, now: float) -> Finished | None:
        """A request cannot go on: it ends with ERROR; None if it is unknown or has ended."""
        tracked = self._state.requests.get(request_id)
        if tracked is None:
            return None
        return endings.end(self._state, tracked, FinishReason.ERROR, now, message=message)

    def finish(
        self,
        request_id: int,
        num_output_tokens: int,
        now: float,
        *,
        found_stop: bool = True,
    ) -> Finished | None:
        """A stop string was found after so many output tokens; what came behind is discarded.

        A request that has stop strings and ended by itself is counted now: the client may have
        found one in its last tokens, or none (`found_stop`).
        """
        tracked = self._state.requests.get(request_id)
        if tracked is None:
            self._state.recorder.request_settled(
                request_id, num_output_tokens, found_stop=found_stop
            )
            return None
        return endings.end(
            self._state, tracked, FinishReason.STOP, now, num_output_tokens=num_output_tokens
        )

    def expire(self, now: float) -> list[Finished]:
        """End requests that did not start in time."""
        state = self._state
        return [
            endings.end(
                state,
                tracked,
                FinishReason.TIMEOUT,
                now,
                message=f"the request did not start within {now - tracked.request.arrival_s:.1f} s",
            )
            for tracked in state.queue.late(now)
        ]

    # -- steps -------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None if there is nothing to compute, or enough plans are outstanding."""
        state = self._state
        if len(state.in_flight) >= self._max_plans or not state.requests:
            return None
        return planner.make(state, now)

    def apply(self, result: StepResult, now: float) -> StepOutputs:
        """Put the result of the oldest outstanding plan in force."""
        state = self._state
        record = results.take_record(state, result.step_id)
        if state.offload is not None:
            state.offload.learn(record.plan, result)
        steady = record.steady
        if steady is not None and steady is state.steady and steady.can_apply(state, result):
            return results.apply_steady(state, steady, record, result, now)
        return results.apply(self._state, record, result, now)

    def predict_ms(self, features: StepFeatures) -> float:
        """How long a step of these sizes will take."""
        return self._state.governor.model.predict_ms(features)

    def predict_copies_ms(self, plan: StepPlan) -> float:
        """How much longer a plan takes because of its copies to the host tier and back."""
        offload = self._state.offload
        return 0.0 if offload is None else offload.predict_ms(plan)

    def learn(self, features: StepFeatures, spent_ms: float) -> None:
        """A step took so long, counted from the end of the one before if that led to it.

        Copies to the host tier and back are not in it; `apply` learns them.
        """
        self._state.governor.observe(features, spent_ms)

    def fail_step(self, step_id: int) -> None:
        """The oldest outstanding step failed: what it had advanced is taken back."""
        record = results.take_record(self._state, step_id)
        results.restore(self._state, record)

    # -- live changes ------------------------------------------------------------------------

    def apply_settings(self, settings: EngineSettings) -> None:
        """Put other settings in force between two plans.

        Raises:
            ValueError: a setting that needs a restart differs.
        """
        for name, knob in knobs().items():
            is_same = getattr(settings, name) == getattr(self.settings, name)
            if knob.change is not ChangeClass.LIVE and not is_same:
                raise ValueError(f"{name} cannot change while the engine runs; restart it")
        self._state.apply_settings(settings)

    def reset_prefix_cache(self) -> int:
        """Forget what is cached, on the host too; returns how many blocks became free."""
        if self._state.offload is not None:
            self._state.offload.clear()
        return self._state.cache.reset()

    # -- for people and tests ----------------------------------------------------------------

    def describe(self, now: float) -> list[dict[str, Any]]:
        """Every request: ids, state, tokens, and why it waits."""
        self._state.settle()
        return [self._describe(tracked, now) for tracked in self._state.requests.values()]

    def check(self) -> None:
        """Verify every invariant.

        Raises:
            AssertionError: one does not hold.
        """
        self._state.settle()
        invariants.check(self._state)

    # -- inside ------------------------------------------------------------------------------

    def _describe(self, tracked: TrackedRequest, now: float) -> dict[str, Any]:
        slots, slot = self._state.slots, tracked.slot
        is_running = tracked.state is RequestState.RUNNING
        total = int(slots.total[slot]) if is_running else len(tracked.token_ids)
        return {
            "id": tracked.request_id,
            "external_id": tracked.request.external_id,
            "state": tracked.state.value,
            "priority": tracked.request.priority,
            "tenant": tracked.request.tenant,
            "age_s": now - tracked.request.arrival_s,
            "num_prompt_tokens": tracked.num_prompt_tokens,
            "num_output_tokens": total - tracked.num_prompt_tokens,
            "num_computed_tokens": int(slots.computed[slot])
            if is_running
            else len(tracked.kept) * slots.block_size,
            "num_cached_tokens": tracked.num_cached_tokens,
            "num_blocks": len(slots.blocks(slot) if is_running else tracked.kept),
            "num_preemptions": tracked.num_preemptions,
            "wait_reason": "" if is_running else intake.wait_reason(self._state, tracked).value,
        }

    def _host_usage(self) -> tuple[int, int]:
        offload = self._state.offload
        return (offload.index.num_used, offload.num_skipped) if offload is not None else (0, 0)

    def _virtual_tokens(self) -> Mapping[str, float]:
        state = self._state
        if state.fair is None:
            return {}
        state.settle()
        state.fair.settle(state.slots)
        return {account.name: account.counter for account in state.fair.accounts}

    def _waiting_reasons(self) -> Mapping[str, int]:
        state = self._state
        return Counter(intake.wait_reason(state, tracked).value for tracked in state.queue)

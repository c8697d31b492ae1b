"""A scheduler driven by hand over the fake runner: for tests that decide what happens when."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from paceline_crds.settings import EngineSettings, SpeculativeMethod
from paceline_engine.core.admission import ExpectedOutput
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import StepOutputs, StepPlan, TokenLogprobs
from paceline_engine.core.request import Finished, Refusal, Request, SamplingParams
from paceline_engine.core.scheduler import Scheduler
from paceline_engine.core.stats import Recorder
from paceline_engine.testing.fake_runner import (
    DraftRule,
    FakeRunner,
    FakeRunnerFailed,
    solo_tokens,
)


def tiny_limits(
    *,
    num_blocks: int = 64,
    block_size: int = 8,
    max_model_len: int | None = None,
    max_slots: int = 16,
    max_step_tokens: int = 256,
    vocab_size: int = 97,
    eos_token_ids: tuple[int, ...] = (),
    num_host_blocks: int = 0,
) -> EngineLimits:
    """Limits of an engine that is small enough to get into trouble."""
    longest = (num_blocks - 1) * block_size
    return EngineLimits(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=min(max_model_len or longest, longest),
        max_slots=max_slots,
        max_step_tokens=max_step_tokens,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        cache_root=b"fake model",
        num_host_blocks=num_host_blocks,
        block_bytes=8 * block_size,
    )


class Trial:
    """One scheduler, one fake runner, a clock that a test moves.

    `check` runs after each operation, unless `is_checked` is False: checking brings the scheduler's
    arrays up to date, which an engine does not do between steps.

    With `fails_late` a step's failure is known when its result is asked for, as from the thread of
    `run.executor`: what was planned on top of it by then is not computed, and taken back with it.

    Attributes:
        now: seconds; each step takes `step_s`.
        outputs: request id -> tokens so far.
        finished: request id -> its end.
        plans: every plan made, oldest first.
        num_in_flight: plans without results.
    """

    def __init__(
        self,
        limits: EngineLimits | None = None,
        *,
        max_plans: int = 1,
        step_s: float = 0.01,
        is_checked: bool = True,
        gives_all_back: bool = False,
        fails_late: bool = False,
        drafter: DraftRule | None = None,
        **settings: Any,
    ) -> None:
        self.limits = limits or tiny_limits()
        settings.setdefault("block_size", self.limits.block_size)
        settings.setdefault("max_num_seqs", self.limits.max_slots)
        settings.setdefault("max_num_batched_tokens", self.limits.max_step_tokens)
        if drafter is not None:
            settings.setdefault("speculative_method", SpeculativeMethod.NGRAM)
            settings.setdefault("speculative_num_tokens", 4)
            settings.setdefault("boot_max_speculative_num_tokens", 32)
            settings.setdefault("speculative_adaptive", False)
        self.settings = EngineSettings(**settings)
        self.recorder = Recorder(self.settings, self.limits)
        self._expected = ExpectedOutput()
        self.scheduler = Scheduler(
            self.settings,
            self.limits,
            self.recorder,
            max_plans=max_plans,
            expected=self._expected,
            gives_all_back=gives_all_back,
        )
        self.runner = FakeRunner(self.limits, drafter)
        self.max_plans = max_plans
        self.is_checked = is_checked
        self.step_s = step_s
        self.now = 0.0
        self.requests: dict[int, Request] = {}
        self.outputs: dict[int, list[int]] = {}
        self.prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        self.cached: dict[int, int] = {}
        self.finished: dict[int, Finished] = {}
        self.plans: list[StepPlan] = []
        self.num_in_flight = 0
        self._images: dict[int, list[bytes]] = {}  # of outstanding plans, as they were made
        self._fails_late = fails_late
        self._lost: list[int] = []  # outstanding steps without a result, the one at fault first

    # -- requests ----------------------------------------------------------------------------

    def submit(self, prompt: Sequence[int], **fields: Any) -> int:
        """Submit a request that must be taken; sampling fields go to its params. Returns its id."""
        request = self.request(prompt, **fields)
        refusal = self.offer(request)
        assert refusal is None, refusal
        return request.request_id

    def request(self, prompt: Sequence[int], **fields: Any) -> Request:
        """A request with the next id; `max_tokens` and the like go to its params."""
        own = {"priority", "tenant", "cache_salt", "deadline_s", "arrival_s"}
        params = {name: value for name, value in fields.items() if name not in own}
        rest = {name: value for name, value in fields.items() if name in own}
        rest.setdefault("arrival_s", self.now)
        number = len(self.requests)
        return Request(
            request_id=number,
            external_id=f"request-{number}",
            prompt_token_ids=tuple(prompt),
            params=SamplingParams(**params),
            **rest,
        )

    def offer(self, request: Request) -> Refusal | None:
        """Submit a request that may be refused."""
        refusal = self.scheduler.submit(request, self.now)
        self._check()
        self.requests[request.request_id] = request
        if refusal is None:
            self.outputs[request.request_id] = []
        return refusal

    def abort(self, request_id: int) -> Finished | None:
        """Abort a request, known or not."""
        return self._ended(self.scheduler.abort(request_id, self.now))

    def stop(self, request_id: int, num_output_tokens: int) -> Finished | None:
        """Finish a request as if a stop string had been found."""
        return self._ended(self.scheduler.finish(request_id, num_output_tokens, self.now))

    def expire(self) -> list[Finished]:
        """End what did not start in time."""
        late = self.scheduler.expire(self.now)
        for finished in late:
            self._ended(finished)
        return late

    def change(self, **settings: Any) -> None:
        """Put other live settings in force."""
        self.settings = EngineSettings(**{**self.settings.model_dump(), **settings})
        self.scheduler.apply_settings(self.settings)
        self._check()

    def expect_short_outputs(self) -> None:
        """Let admission believe that outputs are short, so that it admits too much."""
        for _ in range(500):
            self._expected.observe(0, 1000)

    # -- steps -------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """Plan a step and launch it; one that fails at once is reported after those before it.

        With `fails_late` it is reported when its turn comes.
        """
        plan = self.scheduler.plan(self.now)
        self._check()
        if plan is not None:
            self.plans.append(plan)
            self.num_in_flight += 1
            self._images[plan.step_id] = _image(plan)
            if self._lost:
                self._lost.append(plan.step_id)
                return plan
            try:
                self.runner.forward(plan)
            except FakeRunnerFailed:
                if self._fails_late:
                    self._lost.append(plan.step_id)
                    return plan
                while self.num_in_flight > 1:
                    self.apply()
                self.num_in_flight = 0
                self._fail(plan.step_id)
        return plan

    def apply(self) -> StepOutputs | None:
        """Put the oldest result in force; None if its step failed."""
        self.now += self.step_s
        oldest = self.plans[-self.num_in_flight]
        step_id = oldest.step_id
        image = self._images.pop(step_id)
        assert image == _image(oldest), "a plan changed while a thread may have read it"
        if self._lost and self._lost[0] == step_id:
            self._fail_all()
            return None
        self.num_in_flight -= 1
        try:
            result = self.runner.sample()
        except FakeRunnerFailed:
            self._fail(step_id)
            return None
        outputs = self.scheduler.apply(result, self.now)
        self._check()
        for request_id, row in zip(outputs.request_ids.tolist(), outputs.tokens, strict=True):
            self.outputs[request_id] += [token for token in row.tolist() if token >= 0]
        for request_id, entries in outputs.prompt_logprobs.items():
            self.prompt_logprobs.setdefault(request_id, []).extend(entries)
        self.cached.update(outputs.num_cached_tokens)
        for finished in outputs.finished:
            self._ended(finished)
        return outputs

    def _fail_all(self) -> None:
        lost, self._lost = self._lost, []
        self.num_in_flight -= len(lost)
        for step_id in lost:
            self._fail(step_id)

    def _fail(self, step_id: int) -> None:
        self.scheduler.fail_step(step_id)
        self._check()

    def step(self) -> StepPlan | None:
        """Plan as far as allowed, then apply one result; returns the last plan made."""
        plan = self.plan()
        while plan is not None and self.num_in_flight < self.max_plans:
            following = self.plan()
            if following is None:
                break
            plan = following
        if self.num_in_flight:
            self.apply()
        return plan

    def run(self, max_steps: int = 10_000) -> int:
        """Step until nothing is left to do; returns the number of steps."""
        for count in range(max_steps):
            if not self.scheduler.has_work:
                return count
            is_moving = self.num_in_flight > 0  # the step is going to apply a result
            is_moving |= self.step() is not None
            assert is_moving, "work, but no progress"
        raise AssertionError(f"still busy after {max_steps} steps")

    # -- judgement ---------------------------------------------------------------------------

    def assert_solo(self, request_id: int) -> None:
        """The request ended with the tokens it would have had alone.

        Raises:
            AssertionError: it did not.
        """
        tokens, reason = solo_tokens(self.requests[request_id], self.limits)
        assert self.outputs[request_id] == tokens, f"request {request_id} has other tokens"
        finished = self.finished[request_id]
        assert (finished.reason, finished.num_output_tokens) == (reason, len(tokens))

    def assert_all_solo(self) -> None:
        """Every request that was taken did, and nothing is left in the engine.

        Raises:
            AssertionError: one did not.
        """
        for request_id in self.outputs:
            self.assert_solo(request_id)
        active, _, _, held = self.scheduler.usage()
        assert active == held == 0, "blocks are still in use"

    def _check(self) -> None:
        if self.is_checked:
            self.scheduler.check()

    def _ended(self, finished: Finished | None) -> Finished | None:
        self._check()
        if finished is not None:
            assert finished.request_id not in self.finished, "a request ended twice"
            self.finished[finished.request_id] = finished
        return finished


def _image(plan: StepPlan) -> list[bytes]:
    """Everything that a runner reads of a plan."""
    values = [getattr(plan, item.name) for item in fields(plan)]
    values += [added.token_ids for added in plan.added]
    return [value.tobytes() for value in values if isinstance(value, np.ndarray)]

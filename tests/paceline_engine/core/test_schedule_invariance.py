"""The property that matters most: whatever the schedule, each request gets its own tokens.

A state machine submits, aborts, changes settings, lets steps fail and answers late, over a pool
that may be tiny, with drafts that hold or not. `Trial` checks every invariant after every
operation, in half of the runs.
"""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from paceline_crds.settings import SchedulingPolicy
from paceline_engine.core.request import FinishReason
from paceline_engine.testing.fake_runner import (
    Failure,
    partly_right,
    solo_prompt_logprobs,
    solo_tokens,
)
from paceline_engine.testing.trial import Trial, tiny_limits

LIVE = st.fixed_dictionaries(
    {},
    optional={
        "max_num_batched_tokens": st.integers(1, 64),
        "max_num_seqs": st.integers(1, 8),
        "long_prefill_tokens": st.sampled_from([None, 0, 1, 5, 16]),
        "scheduling_policy": st.sampled_from(SchedulingPolicy),
        "tenants": st.sampled_from(
            [
                None,
                [{"name": "gold", "weight": 3}],
                [{"name": "gold", "maxSeqs": 1}, {"name": "free", "budgetShare": "0.1"}],
            ]
        ),
        "priority_aging_s": st.sampled_from([0, 1, 30]),
        "prefix_caching": st.booleans(),
        "watermark": st.sampled_from(["0", "0.01", "0.3"]),
        "speculative_num_tokens": st.sampled_from([0, 1, 4, 20]),
    },
)


class Schedule(RuleBasedStateMachine):
    trial: Trial

    @initialize(
        num_blocks=st.integers(4, 24),
        block_size=st.sampled_from([8, 16]),
        num_host_blocks=st.sampled_from([0, 1, 3, 200]),
        max_plans=st.sampled_from([1, 1, 2]),
        is_hopeful=st.booleans(),
        is_checked=st.booleans(),
        gives_all_back=st.sampled_from([False, False, False, True]),
        fails_late=st.booleans(),
        one_wrong_in=st.sampled_from([None, 1, 3, 1000]),
        live=LIVE,
    )
    def begin(
        self,
        num_blocks,
        block_size,
        num_host_blocks,
        max_plans,
        is_hopeful,
        is_checked,
        gives_all_back,
        fails_late,
        one_wrong_in,
        live,
    ):
        limits = tiny_limits(
            num_blocks=num_blocks,
            block_size=block_size,
            num_host_blocks=num_host_blocks,
            max_model_len=120,
            max_slots=8,
            max_step_tokens=64,
            vocab_size=61,
            eos_token_ids=(7,),
        )
        drafter = one_wrong_in and partly_right(61, one_wrong_in=one_wrong_in)
        self.has_drafter = drafter is not None
        self.trial = Trial(
            limits,
            max_plans=max_plans,
            is_checked=is_checked,
            gives_all_back=gives_all_back,
            fails_late=fails_late,
            drafter=drafter,
            **self.takes(live),
        )
        if is_hopeful:
            self.trial.expect_short_outputs()
        self.cut: set[int] = set()  # ended from outside: their tokens are a prefix of all

    def takes(self, live):
        """A number of drafts needs somebody who proposes them."""
        return live if self.has_drafter else {**live, "speculative_num_tokens": 0}

    @rule(
        family=st.integers(0, 2),
        shared=st.integers(0, 60),
        own=st.integers(1, 20),
        max_tokens=st.integers(0, 40),
        priority=st.integers(-2, 2),
        tenant=st.sampled_from(["", "gold", "free"]),
        salt=st.sampled_from(["", "", "x"]),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        count=st.integers(1, 4),
    )
    def submit(
        self, family, shared, own, max_tokens, priority, tenant, salt, prompt_logprobs, count
    ):
        for number in range(count):
            prompt = [(family * 17 + i * i) % 61 for i in range(shared)]
            prompt += [(len(self.trial.requests) // (1 + number % 2) + i) % 61 for i in range(own)]
            request = self.trial.request(
                prompt,
                max_tokens=max_tokens,
                min_tokens=min(2, max_tokens),
                priority=priority,
                tenant=tenant,
                cache_salt=salt,
                prompt_logprobs=prompt_logprobs,
            )
            refusal = self.trial.offer(request)
            longest = self.trial.limits.max_model_len - (1 if max_tokens else 0)
            assert (refusal is not None) == (len(prompt) > longest)

    @rule(count=st.integers(1, 12))
    def steps(self, count):
        for _ in range(count):
            self.trial.step()

    @rule()
    def plan(self):
        self.trial.plan()

    @precondition(lambda self: self.trial.num_in_flight)
    @rule()
    def apply(self):
        self.trial.apply()

    @rule(failure=st.sampled_from(Failure), count=st.integers(0, 3))
    def fail(self, failure, count):
        self.trial.runner.fail_next(failure)
        for _ in range(count):
            self.trial.step()

    @precondition(lambda self: self.trial.outputs)
    @rule(data=st.data(), stops=st.booleans())
    def end_early(self, data, stops):
        request_id = data.draw(st.sampled_from(sorted(self.trial.outputs)))
        have = len(self.trial.outputs[request_id])
        if stops and have:
            finished = self.trial.stop(request_id, data.draw(st.integers(1, have)))
        else:
            finished = self.trial.abort(request_id)
        if finished is not None:
            self.cut.add(request_id)

    @rule(live=LIVE)
    def change(self, live):
        self.trial.change(**self.takes(live))

    @rule()
    def reset(self):
        self.trial.scheduler.reset_prefix_cache()

    def teardown(self):
        if not hasattr(self, "trial"):
            return
        trial = self.trial
        trial.run()
        trial.scheduler.check()
        for request_id, outputs in trial.outputs.items():
            request = trial.requests[request_id]
            if request_id in self.cut:
                assert outputs == solo_tokens(request, trial.limits)[0][: len(outputs)]
                continue
            trial.assert_solo(request_id)
            if request.params.prompt_logprobs is not None and len(request.prompt_token_ids) > 1:
                assert trial.prompt_logprobs[request_id] == solo_prompt_logprobs(request)
            assert trial.finished[request_id].reason is not FinishReason.ERROR
            assert request_id in trial.cached
        active, _, _, held = trial.scheduler.usage()
        assert active == held == 0
        assert trial.scheduler.num_running == trial.scheduler.num_waiting == 0


TestSchedule = pytest.mark.slow(Schedule.TestCase)
TestSchedule.settings = settings(
    max_examples=70,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

"""The real scheduler over the real runner, stepped by hand: whole runs without a server.

Steps overlap if the settings say so, as they do in a server.
"""

from collections.abc import Callable, Sequence
from typing import Any

from paceline_engine.core.admission import ExpectedOutput
from paceline_engine.core.plan import TokenLogprobs
from paceline_engine.core.request import Finished, Request, SamplingParams
from paceline_engine.core.scheduler import Scheduler
from paceline_engine.core.stats import Recorder
from paceline_engine.run.pipeline import MAX_OUTSTANDING, StepPipeline
from paceline_engine.run.runner import Runner


class OfflineEngine:
    """Requests in, tokens out. Time is a step counter.

    Attributes:
        expected: what admission believes of the length of outputs.
        outputs: request id -> tokens so far.
        logprobs, prompt_logprobs: request id -> entries so far.
        finished: request id -> its end.
        cached: request id -> prompt tokens taken from the prefix cache.
        num_steps: steps run.
        num_returns: times that a request took a slot again, after preemption.
    """

    def __init__(
        self, runner: Runner, *, clock: Callable[[], float] | None = None, **settings: Any
    ) -> None:
        """Use a runner; `settings` are live ones.

        Args:
            runner: that computes.
            clock: seconds, by which the cost model learns; None counts steps, so that nothing
                depends on the machine.
            **settings: snake_case name -> value.
        """
        self._clock = clock or (lambda: float(self.num_steps))
        live = runner.settings.model_copy(update=settings)
        self.runner = runner
        self.recorder = Recorder(live, runner.limits)
        self.expected = ExpectedOutput()
        self.scheduler = Scheduler(
            live,
            runner.limits,
            self.recorder,
            expected=self.expected,
            max_plans=MAX_OUTSTANDING,
        )
        self._pipeline = StepPipeline(self.scheduler, runner, self.recorder, self._clock)
        self.outputs: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprobs]] = {}
        self.prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        self.finished: dict[int, Finished] = {}
        self.cached: dict[int, int] = {}
        self.num_steps = 0
        self.num_returns = 0
        self._seen: set[int] = set()

    def submit(self, prompt: Sequence[int], request_id: int | None = None, **params: Any) -> int:
        """Submit a request that must be taken; greedy unless `params` say otherwise."""
        number = len(self.outputs) if request_id is None else request_id
        params.setdefault("temperature", 0.0)
        request = Request(
            request_id=number,
            external_id=f"request-{number}",
            prompt_token_ids=tuple(prompt),
            params=SamplingParams(**params),
            arrival_s=self._clock(),
        )
        refusal = self.scheduler.submit(request, request.arrival_s)
        if refusal is not None:
            raise ValueError(refusal.message)
        self.outputs[number] = []
        return number

    def value(self, name: str) -> float:
        """A counter or gauge without labels, as it is now."""
        return self.recorder.snapshot(self._clock()).value(name)

    def step(self) -> bool:
        """Plan what may be planned and apply one step; False if there was nothing to compute."""
        for plan in self._pipeline.fill(self._clock()):
            added = [request.request_id for request in plan.added]
            self.num_returns += len(self._seen.intersection(added))
            self._seen.update(added)
        if self._pipeline.is_empty:
            return False
        outputs, _ = self._pipeline.land()
        self.num_steps += 1
        for request_id, tokens in zip(
            outputs.request_ids.tolist(), outputs.tokens.tolist(), strict=True
        ):
            self.outputs[request_id] += [token for token in tokens if token >= 0]
        for mine, new in (
            (self.logprobs, outputs.logprobs),
            (self.prompt_logprobs, outputs.prompt_logprobs),
        ):
            for request_id, entries in new.items():
                mine.setdefault(request_id, []).extend(entries)
        self.finished |= {end.request_id: end for end in outputs.finished}
        self.cached |= outputs.num_cached_tokens
        return True

    def run(self) -> dict[int, list[int]]:
        """Step until every request has ended."""
        while self.step():
            pass
        self._pipeline.close()
        if self.scheduler.has_work:
            raise RuntimeError("requests remain, but the scheduler plans nothing")
        self.scheduler.check()
        return self.outputs

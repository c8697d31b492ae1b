"""Two engines in one process that take turns step by step: what one does better, whatever disturbs.

Both get the same requests; the one that has given fewer tokens goes next, so that the machine's
moods meet both. Each has a clock that stands still while the other one works, and learns from it.
Only steps without prompt tokens count: the others are alike.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

import numpy as np

from paceline_crds.settings import EngineSettings
from paceline_engine.core import step_features
from paceline_engine.core.plan import StepPlan, StepResult
from paceline_engine.core.request import Request
from paceline_engine.run.runner import Runner
from paceline_engine.serve.step.assembly import assemble
from paceline_engine.serve.step.messages import FromEngine, Submit, Turn

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Of a ratio, from the logarithms of paired rounds: Student's t, 95%."""

    ratio: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Of the interval; infinite while one round alone is known."""
        return (self.high - self.low) / 2

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Interval":
        """The interval of so many rounds."""
        logs = [math.log(ratio) for ratio in ratios]
        middle = fmean(logs)
        if len(logs) < 2:
            return cls(ratio=math.exp(middle), low=0.0, high=math.inf)
        reach = student_t(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
        return cls(
            ratio=math.exp(middle), low=math.exp(middle - reach), high=math.exp(middle + reach)
        )


def student_t(freedom: int) -> float:
    """The two-sided 95% quantile, within 1% from 4 degrees of freedom on.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))


class OwnClock:
    """Seconds that pass only while its engine works."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._passed = 0.0
        self._since = math.nan

    def __call__(self) -> float:
        """Seconds so far."""
        running = 0.0 if math.isnan(self._since) else self._clock() - self._since
        return self._passed + running

    def __enter__(self) -> None:
        self._since = self._clock()

    def __exit__(self, *_: object) -> None:
        self._passed, self._since = self(), math.nan


class _Watched:
    """A runner that remembers the last plan; the step loop drives it as it does any other."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.limits, self.settings = runner.limits, runner.settings
        self.memory_plan, self.kernels = runner.memory_plan, runner.kernels
        self.kv_divergence = runner.kv_divergence
        self.plan: StepPlan | None = None

    def forward(self, plan: StepPlan) -> None:
        self.plan = plan
        self._runner.forward(plan)

    def sample(self) -> StepResult:
        return self._runner.sample()

    def do_spare_work(self) -> bool:
        return self._runner.do_spare_work()


class Arm:
    """One of the engines. Mutable.

    Attributes:
        outputs: request id -> tokens of this round.
        num_tokens: of all of them.
        spent_s: in steps without prompt tokens, this round.
        asked: drafts that each such step with all requests asked for, this round.
        num_drafted, num_accepted: draft tokens of this round.
        num_decoded: tokens of the steps that count.
    """

    def __init__(self, runner: Runner, settings: EngineSettings) -> None:
        self._clock = OwnClock()
        self._watched = _Watched(runner)
        self._loop = assemble(
            self._watched, settings=settings, clock=self._clock, publish=self._take
        )
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self.outputs: dict[int, list[int]] = {}
        self.num_tokens = 0
        self.spent_s = 0.0
        self.asked: list[int] = []
        self.num_drafted = self.num_accepted = self.num_decoded = 0
        self._num_running = 0

    def submit(self, request: Request) -> None:
        """Take a request of this round."""
        self.outputs[request.request_id] = []
        self._num_running += 1
        with self._clock:
            self._loop.handle(Submit(request))

    @property
    def is_done(self) -> bool:
        """Every request of this round has ended."""
        return not self._num_running

    def step(self) -> None:
        """One turn of the step loop."""
        before, num_before, whole = self._clock(), self.num_tokens, self._num_running
        with self._clock:
            self._loop.turn()
        plan, self._watched.plan = self._watched.plan, None
        if plan is None:
            raise RuntimeError("requests remain, but the scheduler plans nothing")
        if not step_features.of(plan).num_prefill_tokens:
            if drafted := len(plan.draft_tokens):
                self.num_drafted += drafted
                new = self.num_tokens - num_before
                self.num_accepted += new - int(np.count_nonzero(plan.samples))
            self.spent_s += self._clock() - before
            self.num_decoded += self.num_tokens - num_before
            if whole == len(self.outputs):
                self.asked.append(plan.max_drafts)

    def run(self, requests: Sequence[Request]) -> None:
        """A round without anybody else."""
        self.begin()
        for request in requests:
            self.submit(request)
        while not self.is_done:
            self.step()

    def _take(self, message: FromEngine) -> None:
        if not isinstance(message, Turn):
            return
        if message.refused:
            raise RuntimeError(f"a request was refused: {message.refused[0][1].message}")
        ids = np.frombuffer(message.request_ids, dtype=np.int64).tolist()
        tokens = np.frombuffer(message.tokens, dtype=np.int32).reshape(len(ids), message.width)
        for request_id, row in zip(ids, tokens.tolist(), strict=True):
            new = [token for token in row if token >= 0]
            self.outputs[request_id] += new
            self.num_tokens += len(new)
        self._num_running -= len(message.finished)


def run_round(plain: Arm, other: Arm, requests: Sequence[Request]) -> float:
    """The same requests through both engines; returns how many times faster the other one was."""
    arms = (plain, other)
    for arm in arms:
        arm.begin()
        for request in requests:
            arm.submit(request)
    while left := [arm for arm in arms if not arm.is_done]:
        min(left, key=lambda arm: arm.num_tokens).step()
    return plain.spent_s / other.spent_s


def num_different(plain: Arm, other: Arm) -> int:
    """Answers of the last round that are not the same to the last token."""
    return sum(tokens != other.outputs[number] for number, tokens in plain.outputs.items())

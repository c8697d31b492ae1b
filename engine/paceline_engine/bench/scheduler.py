"""Microseconds that the scheduler takes for a step: plan and apply, blocks, hashes, statistics.

No model runs: results are made up between the timed parts. First decodes that go on; then one of
them ends, and one arrives, each step; then a tenth of them (their arrival is timed too). Beside
them stand published figures of vLLM's scheduler.
"""

import gc
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from paceline_crds.settings import EngineSettings
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import StepPlan, StepResult
from paceline_engine.core.request import Request, SamplingParams
from paceline_engine.core.scheduler import Scheduler
from paceline_engine.core.stats import Recorder

SIZES = (64, 256, 1024)
PEER_US_PER_STEP = {64: 884.0, 256: 3542.0, 1024: 15939.0}
"""vLLM 0.32's scheduler alone, steady decodes, by running requests."""
PEER_SOURCE = "vLLM 0.32's scheduler: a published measurement on an AMX machine, steady decodes"
_BLOCK_SIZE = 16
_PROMPT_TOKENS = 64
_VOCAB = 32_000
HEAD = " running end and arrive    us a step  us of CPU  us a request    vLLM*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: medians over groups of 16 steps (a block boundary for everybody).

    Attributes:
        churn: requests end and arrive each step.
        changed: how many of each.
        us_per_step, us_per_request: by the wall clock.
        us_per_step_min: of the quietest group.
        cpu_us_per_step: time on a CPU: what is left when other processes took turns.
    """

    running: int
    churn: bool
    changed: int
    us_per_step: float
    us_per_request: float
    us_per_step_min: float
    cpu_us_per_step: float
    peer_us_per_step: float | None


class _Bench:
    """A scheduler full of requests, and made-up results.

    Args:
        running: requests that run.
        changed: of them, those that end each step, and as many arrive.
        num_steps: steps to come.
    """

    def __init__(self, running: int, *, changed: int, num_steps: int) -> None:
        self._random = random.Random(1234)  # noqa: S311 - prompts of a benchmark
        self._running, self._changed = running, changed
        self._life = running // changed if changed else 0
        longest = _PROMPT_TOKENS + 64 + max(num_steps, self._life)
        blocks = 2 + 2 * running * (longest // _BLOCK_SIZE + 1)
        limits = EngineLimits(
            num_blocks=blocks,
            block_size=_BLOCK_SIZE,
            max_model_len=longest,
            max_slots=running + max(1, running // 8),
            max_step_tokens=running * (_PROMPT_TOKENS + _BLOCK_SIZE),
            vocab_size=_VOCAB,
            eos_token_ids=(_VOCAB - 1,),
            cache_root=b"bench",
        )
        settings = EngineSettings(
            max_num_seqs=limits.max_slots,
            max_num_batched_tokens=limits.max_step_tokens,
            queue_max_requests=1_000_000,
            long_prefill_tokens=0,
        )
        self._scheduler = Scheduler(settings, limits, Recorder(settings, limits))
        self._longest = longest
        self._now = 0.0
        self._next_id = 0
        lives = [1 + i % self._life if changed else longest for i in range(running)]
        requests = [self._request(max_tokens) for max_tokens in lives]
        for request in requests:
            assert self._scheduler.submit(request, self._now) is None
        while self._scheduler.num_waiting:
            self._step([])

    def _request(self, max_tokens: int) -> Request:
        # Lengths differ, so that block boundaries are spread over steps as in real traffic.
        length = _PROMPT_TOKENS + self._next_id % _BLOCK_SIZE
        self._next_id += 1
        return Request(
            request_id=self._next_id,
            external_id=str(self._next_id),
            prompt_token_ids=tuple(self._random.choices(range(_VOCAB - 1), k=length)),
            params=SamplingParams(max_tokens=max_tokens),
            arrival_s=self._now,
        )

    def _step(self, arrivals: Sequence[Request]) -> tuple[float, float]:
        """One step; returns the seconds that the scheduler took, by the wall and on a CPU."""
        scheduler = self._scheduler
        start, cpu_start = time.perf_counter(), time.thread_time()
        for request in arrivals:
            scheduler.submit(request, self._now)
        plan = scheduler.plan(self._now)
        took, cpu = time.perf_counter() - start, time.thread_time() - cpu_start
        assert plan is not None
        result = _made_up(plan)
        self._now += 0.02
        start, cpu_start = time.perf_counter(), time.thread_time()
        scheduler.apply(result, self._now)
        took += time.perf_counter() - start
        return took, cpu + time.thread_time() - cpu_start

    def times(self, num_steps: int) -> Iterator[tuple[float, float]]:
        """(wall, CPU) seconds of each of so many steps."""
        for _ in range(num_steps):
            arrivals = [self._request(self._life) for _ in range(self._missing())]
            yield self._step(arrivals)

    def _missing(self) -> int:
        return self._running - self._scheduler.num_running if self._changed else 0


def _made_up(plan: StepPlan) -> StepResult:
    tokens = (np.arange(len(plan.slots), dtype=np.int32) * 7 + plan.step_id) % (_VOCAB - 2)
    tokens = np.where(plan.samples, tokens, -1).astype(np.int32)
    return StepResult(step_id=plan.step_id, tokens=tokens[:, None])


def measure(running: int, *, changed: int = 0, num_steps: int = 320) -> Row:
    """Time steps with so many running requests, of which so many end and arrive each step."""
    bench = _Bench(running, changed=changed, num_steps=num_steps + 32)
    list(bench.times(32))
    gc.collect()
    gc.freeze()  # as the step process does once it is loaded
    times = np.array(list(bench.times(num_steps // 16 * 16))).reshape(-1, 16, 2).mean(axis=1) * 1e6
    gc.unfreeze()
    median, cpu = np.median(times, axis=0).tolist()
    return Row(
        running=running,
        churn=changed > 0,
        changed=changed,
        us_per_step=round(median, 1),
        us_per_request=round(median / running, 3),
        us_per_step_min=round(float(times[:, 0].min()), 1),
        cpu_us_per_step=round(cpu, 1),
        peer_us_per_step=None if changed else PEER_US_PER_STEP.get(running),
    )


def run(sizes: Sequence[int] = SIZES) -> Iterator[Row]:
    """All rows, steady ones first."""
    for changed in (lambda _: 0, lambda _: 1, lambda running: max(1, running // 10)):
        for running in sizes:
            yield measure(running, changed=changed(running))


def line(row: Row) -> str:
    """A row of the table under `HEAD`."""
    peer = "" if row.peer_us_per_step is None else f"{row.peer_us_per_step:.0f}"
    return (
        f"{row.running:8d} {row.changed:14d} {row.us_per_step:12.1f} {row.cpu_us_per_step:10.1f} "
        f"{row.us_per_request:13.3f} {peer:>8}"
    )


def show(write: Callable[[str], None], sizes: Sequence[int] = SIZES, *, as_json: bool) -> None:
    """Write a row as soon as it is measured: a line of JSON, or of the table."""
    if not as_json:
        write(HEAD)
    for row in run(sizes):
        write(json.dumps(asdict(row)) if as_json else line(row))
    if not as_json:
        write(f"* {PEER_SOURCE}")

"""Microseconds that the scheduler takes for a step: plan and apply, blocks, hashes, statistics.

No model runs: results are made up between the timed parts. `steady` has so many decodes that go on;
under `churn` a tenth of them ends, and as many arrive, each step (their arrival is timed too).

    python -m paceline_engine.bench.scheduler --json
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
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
"""vLLM 0.32's scheduler alone, steady decodes, as measured for this project on such a machine."""
_BLOCK_SIZE = 16
_PROMPT_TOKENS = 64
_LIFE_STEPS = 10
_VOCAB = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: medians over groups of 16 steps (a block boundary for everybody).

    Attributes:
        us_per_step, us_per_request: by the wall clock.
        us_per_step_min: of the quietest group.
        cpu_us_per_step: time on a CPU: what is left when other processes took turns.
    """

    running: int
    churn: bool
    us_per_step: float
    us_per_request: float
    us_per_step_min: float
    cpu_us_per_step: float
    peer_us_per_step: float | None


class _Bench:
    """A scheduler full of requests, and made-up results."""

    def __init__(self, running: int, *, churn: bool, num_steps: int) -> None:
        self._random = random.Random(1234)  # noqa: S311 - prompts of a benchmark
        self._running, self._churn = running, churn
        longest = _PROMPT_TOKENS + 64 + num_steps
        blocks = 2 + 2 * running * (longest // _BLOCK_SIZE + 1)
        limits = EngineLimits(
            num_blocks=blocks,
            block_size=_BLOCK_SIZE,
            max_model_len=longest,
            max_slots=running + running // 8,
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
        lives = [1 + i % _LIFE_STEPS if churn else longest for i in range(running)]
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
            arrivals = [self._request(_LIFE_STEPS) for _ in range(self._missing())]
            yield self._step(arrivals)

    def _missing(self) -> int:
        return self._running - self._scheduler.num_running if self._churn else 0


def _made_up(plan: StepPlan) -> StepResult:
    tokens = (np.arange(len(plan.slots), dtype=np.int32) * 7 + plan.step_id) % (_VOCAB - 2)
    tokens = np.where(plan.samples, tokens, -1).astype(np.int32)
    return StepResult(step_id=plan.step_id, tokens=tokens[:, None])


def measure(running: int, *, churn: bool, num_steps: int = 320) -> Row:
    """Time steps with so many running requests."""
    bench = _Bench(running, churn=churn, num_steps=num_steps + 32)
    list(bench.times(32))
    times = np.array(list(bench.times(num_steps // 16 * 16))).reshape(-1, 16, 2).mean(axis=1) * 1e6
    median, cpu = np.median(times, axis=0).tolist()
    return Row(
        running=running,
        churn=churn,
        us_per_step=round(median, 1),
        us_per_request=round(median / running, 3),
        us_per_step_min=round(float(times[:, 0].min()), 1),
        cpu_us_per_step=round(cpu, 1),
        peer_us_per_step=None if churn else PEER_US_PER_STEP.get(running),
    )


def run(sizes: Sequence[int] = SIZES) -> Iterator[Row]:
    """All rows, steady ones first."""
    for churn in (False, True):
        for running in sizes:
            yield measure(running, churn=churn)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row a line."""
    parser = argparse.ArgumentParser(prog="paceline bench scheduler", description=__doc__)
    parser.add_argument("--json", action="store_true", help="a line of JSON per row")
    parser.add_argument("--running", type=int, nargs="*", default=list(SIZES))
    options = parser.parse_args(arguments)
    for row in run(options.running):
        if options.json:
            line = json.dumps(asdict(row))
        else:
            line = (
                f"{row.running:5d} running{', churn' if row.churn else '       '}: "
                f"{row.us_per_step:9.1f} us a step, {row.us_per_request:.3f} us a request "
                f"({row.cpu_us_per_step:.1f} us on a CPU)"
            )
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

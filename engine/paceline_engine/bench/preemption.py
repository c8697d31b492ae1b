"""How many tokens preemption makes the engine compute twice, in a pool that is too small.

The scheduler runs without a model, over prompts and outputs with heavy tails whose lengths it does
not know: clients allow far more than they use, and outputs suddenly get twenty times longer. The
same load runs under our rules and under the usual ones: the last of the running requests loses all
its blocks. No clock is involved, so the figures are the same on every machine.
"""

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from paceline_crds import metrics
from paceline_crds.settings import EngineSettings
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import StepPlan, StepResult
from paceline_engine.core.request import Request, SamplingParams
from paceline_engine.core.scheduler import Scheduler
from paceline_engine.core.stats import Recorder

BLOCK_SIZE = 16
NUM_BLOCKS = (150, 300)
_NUM_REQUESTS = 200
_VOCAB = 1000
_EOS = _VOCAB - 1
_MAX_TOKENS = 1024
_SHORT, _LONG = 10, 200
"""Median outputs of the first quarter of the requests, and of all others."""
HEAD = "blocks  prefix cache  rules             computed  recomputed  share  preempted  steps  run"
RULES = {True: "tail first, all", False: "ours"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run.

    Attributes:
        num_blocks: KV blocks of 16 tokens.
        prefix_caching: whether what was taken may be found again.
        rules: "ours", or "tail first, all": the last of the running loses all its blocks.
        computed_tokens: what all steps computed, recompute included.
        recomputed_tokens: computed before, and lost by preemption.
        share: of the computed tokens.
        preemptions, steps: in the run.
        mean_running: requests that ran in a step.
    """

    num_blocks: int
    prefix_caching: bool
    rules: str
    computed_tokens: int
    recomputed_tokens: int
    share: float
    preemptions: int
    steps: int
    mean_running: float


def _load(seed: int) -> Iterator[tuple[Request, int]]:
    """Requests, and how many tokens each is going to say."""
    draw = random.Random(seed)  # noqa: S311 - lengths of a benchmark
    for number in range(_NUM_REQUESTS):
        prompt = min(1500, max(8, int(draw.lognormvariate(math.log(100), 0.8))))
        median = _SHORT if number < _NUM_REQUESTS // 4 else _LONG
        output = min(_MAX_TOKENS, max(2, int(draw.lognormvariate(math.log(median), 1.0))))
        yield (
            Request(
                request_id=number,
                external_id=str(number),
                prompt_token_ids=tuple(draw.choices(range(_EOS), k=prompt)),
                params=SamplingParams(max_tokens=_MAX_TOKENS),
            ),
            output,
        )


def measure(num_blocks: int, *, prefix_caching: bool, gives_all_back: bool) -> Row:
    """Run the whole load once."""
    limits = EngineLimits(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_model_len=min(4096, (num_blocks - 1) * BLOCK_SIZE),
        max_slots=64,
        max_step_tokens=512,
        vocab_size=_VOCAB,
        eos_token_ids=(_EOS,),
        cache_root=b"bench",
    )
    settings = EngineSettings(
        max_num_seqs=64,
        max_num_batched_tokens=512,
        queue_max_requests=_NUM_REQUESTS,
        queue_max_tokens=10_000_000,
        prefix_caching=prefix_caching,
    )
    recorder = Recorder(settings, limits)
    scheduler = Scheduler(settings, limits, recorder, gives_all_back=gives_all_back)
    left = np.zeros(_NUM_REQUESTS, dtype=np.int64)
    for request, num_outputs in _load(1234):
        left[request.request_id] = num_outputs
        assert scheduler.submit(request, 0.0) is None
    now, running = 0.0, []
    while (plan := scheduler.plan(now)) is not None:
        now += 0.02
        running.append(scheduler.num_running)
        scheduler.apply(_answer(plan, left), now)
    assert not scheduler.has_work
    snapshot = recorder.snapshot(now)
    computed = int(snapshot.histogram(metrics.ITERATION_TOKENS).sum)
    recomputed = int(snapshot.value(metrics.RECOMPUTED))
    return Row(
        num_blocks=num_blocks,
        prefix_caching=prefix_caching,
        rules=RULES[gives_all_back],
        computed_tokens=computed,
        recomputed_tokens=recomputed,
        share=round(recomputed / computed, 4),
        preemptions=int(snapshot.value(metrics.PREEMPTIONS)),
        steps=len(running),
        mean_running=round(sum(running) / len(running), 1),
    )


def _answer(plan: StepPlan, left: NDArray[np.int64]) -> StepResult:
    """Tokens for the rows that sample; a request says its end token when its length is reached."""
    ids = plan.request_ids
    left[ids[plan.samples]] -= 1
    tokens = np.where(plan.samples, np.where(left[ids] <= 0, _EOS, ids % _EOS), -1)
    return StepResult(step_id=plan.step_id, tokens=tokens.astype(np.int32)[:, None])


def line(row: Row) -> str:
    """A row of the table under `HEAD`."""
    return (
        f"{row.num_blocks:6d}  {'on' if row.prefix_caching else 'off':12s}  {row.rules:16s}"
        f"{row.computed_tokens:10d}  {row.recomputed_tokens:10d}  {row.share:5.1%}  "
        f"{row.preemptions:9d}  {row.steps:5d}  {row.mean_running:3.1f}"
    )


def run() -> Iterator[Row]:
    """Each pool with and without the cache, under both rules."""
    for num_blocks in NUM_BLOCKS:
        for prefix_caching in (True, False):
            for gives_all_back in (False, True):
                yield measure(
                    num_blocks, prefix_caching=prefix_caching, gives_all_back=gives_all_back
                )


def show(write: Callable[[str], None], *, as_json: bool) -> None:
    """Write a row as soon as it is there: a line of JSON, or of the table."""
    if not as_json:
        write(HEAD)
    for row in run():
        write(json.dumps(asdict(row)) if as_json else line(row))

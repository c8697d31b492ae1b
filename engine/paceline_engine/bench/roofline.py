"""What share of this machine's roofline an engine reaches on a workload, and its attention alone.

A step must read the weights once and the keys and values of its rows, and must multiply so much:
the larger of the two times, at the machine's own rates, bounds it. The rates are measured between
the steps, by the same threads, so that a neighbour's load lowers both. Nothing goes over HTTP.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from paceline_crds.settings import EngineSettings
from paceline_engine.bench.workloads import Workload
from paceline_engine.core.arrays import Int64
from paceline_engine.core.plan import StepPlan
from paceline_engine.model.config import ModelConfig
from paceline_engine.run.load import LoadedModel
from paceline_engine.run.offline import OfflineEngine
from paceline_engine.run.runner import Runner
from paceline_kernels import ops
from paceline_kernels.bench import Case, Machine
from paceline_kernels.bench import measure as measure_case

PROBE_EVERY_S = 0.5
"""Of steps; a look at the machine takes some 10 ms."""
ATTENTION_BUDGET_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What a step computed.

    Attributes:
        new: [rows] tokens.
        context: [rows] tokens that the last of them sees.
        num_logits: rows of the vocabulary projection.
        forward_s: how long it took up to the logits.
    """

    new: Int64
    context: Int64
    num_logits: int
    forward_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The least that must be done."""

    flops: float
    num_bytes: float

    def seconds(self, flops_per_s: float, bytes_per_s: float) -> float:
        """At these rates."""
        return max(self.flops / flops_per_s, self.num_bytes / bytes_per_s)


def attention_work(config: ModelConfig, step: StepShape, kv_element_bytes: int) -> Work:
    """Of one layer: products of queries with the keys they see, keys and values read once."""
    pairs = float((step.new * (step.context - step.new) + step.new * (step.new + 1) / 2).sum())
    return Work(
        flops=4.0 * config.q_size * pairs,
        num_bytes=2.0 * config.kv_size * kv_element_bytes * float(step.context.sum()),
    )


def step_work(
    config: ModelConfig, step: StepShape, kv_element_bytes: int, weight_element_bytes: int
) -> Work:
    """Of a whole step: the products, and attention in each layer."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    layer = (2 * config.q_size + 2 * config.kv_size + 3 * ffn) * hidden
    head = config.vocab_size * hidden
    own = attention_work(config, step, kv_element_bytes)
    layers, tokens = config.num_layers, float(step.new.sum())
    return Work(
        flops=2.0 * (layers * layer * tokens + head * step.num_logits) + layers * own.flops,
        num_bytes=float(weight_element_bytes * (layers * layer + head * (step.num_logits > 0)))
        + layers * own.num_bytes,
    )


class TimedRunner(Runner):
    """A runner that keeps the shape and the time of each step."""

    def __init__(self, loaded: LoadedModel, engine_seed: int) -> None:
        super().__init__(loaded, engine_seed)
        self.steps: list[StepShape] = []

    def forward(self, plan: StepPlan) -> None:
        """As `Runner`, timed."""
        started = time.perf_counter()
        super().forward(plan)
        new = plan.num_tokens.astype(np.int64)
        self.steps.append(
            StepShape(
                new=new,
                context=plan.starts + new,
                num_logits=int(np.count_nonzero(plan.samples)),
                forward_s=time.perf_counter() - started,
            )
        )


def measure(
    folder: Path,
    settings: EngineSettings,
    workloads: list[Workload],
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[dict[str, Any]]:
    """A line of figures for each workload, JSON-ready.

    Args:
        folder: of the model.
        settings: of the engine; drafts are refused, their tokens would count as work.
        workloads: run one after the other.
        clock: seconds.

    Raises:
        ValueError: the settings draft tokens.
        StartFailed: with one of its reasons.
        ImplUnavailableError: the C++ kernels, which measure the machine, cannot run here.
    """
    if settings.speculative_num_tokens:
        raise ValueError("a roofline is taken without drafts; leave speculativeNumTokens out")
    reason = ops.cpu_unavailable_reason()
    if reason is not None:
        raise ValueError(f"the machine's rates are measured by the C++ kernels: {reason}")
    runner = TimedRunner.load(folder, settings, lambda _phase, _share: None, engine_seed=1)
    assert isinstance(runner, TimedRunner)
    machine = Machine(clock)
    _run(runner, workloads[0], machine, clock, max_steps=3)  # what is made once is made here
    for workload in workloads:
        yield _line(runner, workload, machine, clock)


def _run(
    runner: TimedRunner,
    workload: Workload,
    machine: Machine,
    clock: Callable[[], float],
    *,
    max_steps: int | None = None,
) -> tuple[float, list[tuple[float, float]]]:
    """(seconds of the steps, the machine's rates between them); `runner.steps` tells the rest."""
    runner.steps.clear()
    session = OfflineEngine(runner, prefix_caching=False)
    for item in workload.items:
        session.submit(item.prompt_token_ids, max_tokens=item.max_tokens, ignore_eos=True)
    rates, spent, since = [machine.rates()], 0.0, 0.0
    while max_steps is None or len(runner.steps) < max_steps:
        started = clock()
        goes_on = session.step()
        took = clock() - started
        if not goes_on:
            break
        spent, since = spent + took, since + took
        if since > PROBE_EVERY_S:
            rates.append(machine.rates())
            since = 0.0
    return spent, rates


def _line(
    runner: TimedRunner, workload: Workload, machine: Machine, clock: Callable[[], float]
) -> dict[str, Any]:
    seconds, rates = _run(runner, workload, machine, clock)
    steps = list(runner.steps)
    flops, read = (median(values) for values in zip(*rates, strict=True))
    config = runner.decoder.config
    kv_bytes = runner.kv[0].k_cache.element_size()
    weight_bytes = 4 if config.checkpoint_dtype == "float32" else 2
    bounds = [
        step_work(config, step, kv_bytes, weight_bytes).seconds(flops, read) for step in steps
    ]
    tokens = workload.num_output_tokens
    return {
        "workload": workload.name,
        "steps": len(steps),
        "seconds": round(seconds, 3),
        "output_tokens_per_s": round(tokens / seconds, 1),
        "total_tokens_per_s": round((tokens + workload.num_prompt_tokens) / seconds, 1),
        "roofline_share": round(sum(bounds) / seconds, 3),
        "forward_share": round(sum(bounds) / sum(step.forward_s for step in steps), 3),
        "machine_gflops": round(flops / 1e9, 1),
        "machine_gbytes_per_s": round(read / 1e9, 1),
        "attention": _attention(runner, typical(steps), machine, clock),
    }


def typical(steps: list[StepShape]) -> StepShape:
    """The step in which half of the time has been spent when steps are sorted by their time."""
    ordered = sorted(steps, key=lambda step: step.forward_s)
    spent = np.cumsum([step.forward_s for step in ordered])
    return ordered[int(np.searchsorted(spent, spent[-1] / 2))]


def _attention(
    runner: TimedRunner, step: StepShape, machine: Machine, clock: Callable[[], float]
) -> dict[str, Any]:
    """One layer's attention of this step; layers take turns, so that KV comes from memory."""
    config, kv = runner.decoder.config, runner.kv
    turns = iter(range(1 << 60))
    q = torch.randn(int(step.new.sum()), config.num_heads, config.head_dim)
    shape = _paged(step, kv[0].k_cache.shape[0], runner.limits.block_size)

    def call() -> None:
        at = next(turns) % len(kv)
        ops.paged_attention(
            q,
            kv[at].k_cache,
            kv[at].v_cache,
            *shape,
            softmax_scale=config.head_dim**-0.5,
            sliding_window=config.sliding_windows[at],
            k_scale=kv[at].k_scale,
            v_scale=kv[at].v_scale,
            impl=runner.kernels["attention"],
        )

    work = attention_work(config, step, kv[0].k_cache.element_size())
    case = Case(
        name="attention",
        call=call,
        flops=work.flops,
        num_bytes=work.num_bytes,
        tokens=int(step.new.sum()),
    )
    found = measure_case(case, machine, clock, ATTENTION_BUDGET_S)
    bound = work.seconds(found["machine_gflops"] * 1e9, found["machine_gbytes_per_s"] * 1e9)
    return {
        "rows": len(step.new),
        "new_tokens": int(step.new.sum()),
        "context_tokens": int(step.context.sum()),
        "us": found["us"],
        "roofline_us": round(bound * 1e6, 1),
        "roofline_share": found["roofline_share"],
    }


def _paged(
    step: StepShape, num_blocks: int, block_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(block tables, cu_seqlens_q, seq_lens) of rows like the step's; blocks lie anywhere."""
    needed = -(-step.context // block_size)
    blocks = np.random.default_rng(1).permutation(np.arange(1, num_blocks))
    tables = np.zeros((len(needed), int(needed.max())), dtype=np.int32)
    ends = needed.cumsum()
    for row, (count, end) in enumerate(zip(needed.tolist(), ends.tolist(), strict=True)):
        tables[row, :count] = blocks[end - count : end]
    cu_seqlens = np.concatenate(([0], step.new.cumsum())).astype(np.int32)
    return (
        torch.from_numpy(tables),
        torch.from_numpy(cu_seqlens),
        torch.from_numpy(step.context.astype(np.int32)),
    )

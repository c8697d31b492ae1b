"""Times of the CPU kernels beside the machine's roofline, as JSON lines.

`python -m paceline_kernels.bench [--threads N] [--clock wall|cpu]`. Rates of the machine are
measured in turns with the kernels, so a neighbour's load lowers both; `--clock cpu` counts CPU time
(with one thread: the kernel's cost even on a busy machine).
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from paceline_kernels import ops
from paceline_kernels.cpu import library
from paceline_kernels.decoder import (
    Decoder,
    DecoderBatch,
    DecoderLayer,
    DecoderShape,
    prepare_decoder,
    prepare_layer,
)
from paceline_kernels.decoder import decoder_forward as run_decoder
from paceline_kernels.paged_kv import FP8, LayerKv

SHAPE = DecoderShape(
    hidden=576,
    heads=9,
    kv_heads=3,
    head_dim=64,
    ffn=1536,
    vocab=49152,
    rotary_dim=64,
    eps=1e-5,
    softmax_scale=0.125,
)
LAYERS = 30
BLOCK_SIZE = 16
READ_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to time.

    Attributes:
        flops, num_bytes: what it must compute and read at least.
    """

    name: str
    call: Callable[[], object]
    flops: float
    num_bytes: float
    tokens: int


class Machine:
    """Measures the machine's own rates, between the kernels' runs (owns the probe's memory)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._data = torch.zeros(READ_BYTES // 4)
        self._runtime = library.runtime()

    def rates(self) -> tuple[float, float]:
        """(float operations per second, bytes per second)."""
        rt, rounds = self._runtime, 100_000
        start = self._clock()
        rt.lib.paceline_probe_multiply_adds(rt.context, rounds)
        middle = self._clock()
        rt.lib.paceline_probe_read(rt.context, self._data.data_ptr(), READ_BYTES)
        end = self._clock()
        flops = 2 * 12 * (rt.panel // 2) * rounds * rt.num_threads
        return flops / (middle - start), READ_BYTES / (end - middle)


def linear_cases() -> Iterator[Case]:
    """The model's linear layers; many copies, so that weights come from memory as in a step."""
    q_size = SHAPE.heads * SHAPE.head_dim
    sizes = {
        "qkv": (q_size + 2 * SHAPE.kv_heads * SHAPE.head_dim, SHAPE.hidden),
        "o": (SHAPE.hidden, q_size),
        "gate_up": (2 * SHAPE.ffn, SHAPE.hidden),
        "down": (SHAPE.hidden, SHAPE.ffn),
        "lm_head": (SHAPE.vocab, SHAPE.hidden),
    }
    for name, (out, size) in sizes.items():
        copies = max(1, (48 << 20) // (out * size * 2))
        weight = torch.randn(out, size).bfloat16()
        prepared = [
            ops.prepare_linear(weight, impl="cpu", is_gated=name == "gate_up")
            for _ in range(copies)
        ]
        for tokens in (1, 4, 16, 64, 256):
            if name == "lm_head" and tokens > 64:
                continue
            x, turn = torch.randn(tokens, size), iter(range(1 << 30))

            def call(x: torch.Tensor = x, turn: Iterator[int] = turn) -> None:
                weight = prepared[next(turn) % copies]  # noqa: B023  (called within the loop)
                (ops.linear_silu_mul if weight.is_gated else ops.linear)(x, weight)

            yield Case(
                name=f"linear {name} {out}x{size}",
                call=call,
                flops=2.0 * tokens * out * size,
                num_bytes=2.0 * out * size,
                tokens=tokens,
            )


def scale_for(dtype: torch.dtype) -> torch.Tensor | None:
    """What an FP8 cache is used with."""
    return torch.ones(SHAPE.kv_heads) if dtype == FP8 else None


def attention_cases() -> Iterator[Case]:
    """Decodes and prefill chunks over a paged cache."""
    for dtype in (torch.float32, torch.bfloat16, FP8):
        for rows, context, new in ((16, 150, 1), (16, 1000, 1), (1, 512, 512), (1, 1500, 256)):
            blocks = -(-context // BLOCK_SIZE)
            k_cache, v_cache = ops.new_kv_cache(
                rows * blocks + 1,
                BLOCK_SIZE,
                SHAPE.kv_heads,
                SHAPE.head_dim,
                dtype,
                impl="cpu",
            )
            for cache in (k_cache, v_cache):
                cache.copy_(torch.randn(cache.shape))
            tables = (torch.randperm(rows * blocks) + 1).to(torch.int32).view(rows, blocks)
            q = torch.randn(rows * new, SHAPE.heads, SHAPE.head_dim)
            cu = torch.arange(rows + 1, dtype=torch.int32) * new
            lens = torch.full((rows,), context, dtype=torch.int32)

            scale = scale_for(dtype)

            def call(
                arguments: tuple[torch.Tensor, ...] = (q, k_cache, v_cache, tables, cu, lens),
                scale: torch.Tensor | None = scale,
            ) -> None:
                ops.paged_attention(
                    *arguments, softmax_scale=0.125, k_scale=scale, v_scale=scale, impl="cpu"
                )

            seen = rows * (new * (context - new) + new * (new + 1) / 2)
            per_token = 2 * SHAPE.kv_heads * SHAPE.head_dim * k_cache.element_size()
            yield Case(
                name=f"attention {str(dtype)[6:]} {rows} rows x {context}",
                call=call,
                flops=4.0 * SHAPE.heads * SHAPE.head_dim * seen,
                num_bytes=float(rows * context * per_token),
                tokens=rows * new,
            )


def random_decoder() -> Decoder:
    """SmolLM2-135M's shape with random weights."""
    qkv = (SHAPE.heads + 2 * SHAPE.kv_heads) * SHAPE.head_dim

    def draw(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes).mul_(sizes[-1] ** -0.5).bfloat16()

    layers = [
        prepare_layer(
            DecoderLayer(
                input_norm=torch.ones(SHAPE.hidden),
                qkv=draw(qkv, SHAPE.hidden),
                o=draw(SHAPE.hidden, SHAPE.heads * SHAPE.head_dim),
                post_norm=torch.ones(SHAPE.hidden),
                gate_up=draw(2 * SHAPE.ffn, SHAPE.hidden),
                down=draw(SHAPE.hidden, SHAPE.ffn),
            ),
            impl="cpu",
        )
        for _ in range(LAYERS)
    ]
    embedding = draw(SHAPE.vocab, SHAPE.hidden)
    angles = torch.arange(4096).float()[:, None] * 1e5 ** (-torch.arange(32) / 32)
    return prepare_decoder(
        SHAPE,
        layers,
        embedding=embedding,
        final_norm=torch.ones(SHAPE.hidden),
        lm_head=ops.prepare_linear(embedding, impl="cpu"),
        cos_sin=torch.cat((angles.cos(), angles.sin()), dim=1),
    )


def forward_cases() -> Iterator[Case]:
    """Whole steps of the model."""
    model = random_decoder()
    per_layer = model.layers[0]
    weights = sum(
        w.out_features * w.in_features
        for w in (per_layer.qkv, per_layer.o, per_layer.gate_up, per_layer.down)
    )
    head = SHAPE.vocab * SHAPE.hidden
    for rows, context, new, dtype in (
        (1, 192, 1, torch.float32),
        (16, 96, 1, torch.float32),
        (16, 300, 1, torch.float32),
        (16, 300, 1, torch.bfloat16),
        (16, 300, 1, FP8),
        (1, 512, 512, torch.float32),
    ):
        blocks = -(-context // BLOCK_SIZE)
        sizes = (rows * blocks + 1, BLOCK_SIZE, SHAPE.kv_heads, SHAPE.head_dim)
        scale = scale_for(dtype)
        caches = [
            LayerKv(*ops.new_kv_cache(*sizes, dtype, impl="cpu"), scale, scale)
            for _ in range(LAYERS)
        ]
        tables = (torch.randperm(rows * blocks) + 1).to(torch.int32).view(rows, blocks)
        at = torch.arange(context - new, context)
        slots = tables[:, at // BLOCK_SIZE].long() * BLOCK_SIZE + at % BLOCK_SIZE
        batch = DecoderBatch(
            token_ids=torch.arange(rows * new),
            positions=at.repeat(rows),
            slot_mapping=slots.flatten().contiguous(),
            block_tables=tables,
            cu_seqlens_q=torch.arange(rows + 1, dtype=torch.int32) * new,
            seq_lens=torch.full((rows,), context, dtype=torch.int32),
            logit_rows=torch.arange(1, rows + 1) * new - 1,
        )

        def call(batch: DecoderBatch = batch, caches: list[LayerKv] = caches) -> None:
            run_decoder(model, batch, caches)

        seen = rows * (new * (context - new) + new * (new + 1) / 2)
        per_token = 2 * SHAPE.kv_heads * SHAPE.head_dim * dtype.itemsize * LAYERS
        yield Case(
            name=f"forward KV {str(dtype)[6:]} {rows} rows x {context}",
            call=call,
            flops=2.0 * (LAYERS * weights * rows * new + head * rows)
            + 4.0 * LAYERS * SHAPE.heads * SHAPE.head_dim * seen,
            num_bytes=2.0 * (LAYERS * weights + head) + rows * context * per_token,
            tokens=rows * new,
        )


def measure(
    case: Case, machine: Machine, clock: Callable[[], float], budget_s: float
) -> dict[str, Any]:
    """Medians of the case and of the machine's rates, in turns."""
    case.call()
    times: list[float] = []
    flops: list[float] = []
    read: list[float] = []
    until = time.perf_counter() + budget_s
    while len(times) < 5 or (time.perf_counter() < until and len(times) < 200):
        if len(times) % 10 == 0:
            rate = machine.rates()
            flops.append(rate[0])
            read.append(rate[1])
        start = clock()
        case.call()
        times.append(clock() - start)

    def median(values: list[float]) -> float:
        return sorted(values)[len(values) // 2]

    taken = median(times)
    bound = max(case.flops / median(flops), case.num_bytes / median(read))
    return {
        "name": case.name,
        "tokens": case.tokens,
        "us": round(taken * 1e6, 1),
        "best_us": round(min(times) * 1e6, 1),
        "gflops": round(case.flops / taken / 1e9, 1),
        "gbytes_per_s": round(case.num_bytes / taken / 1e9, 1),
        "roofline_share": round(bound / taken, 2),
        "machine_gflops": round(median(flops) / 1e9, 1),
        "machine_gbytes_per_s": round(median(read) / 1e9, 1),
        "tokens_per_s": round(case.tokens / taken, 1),
    }


def main() -> None:
    """Print one JSON line per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--budget-s", type=float, default=0.3, help="for one case")
    arguments = parser.parse_args()
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    ops.set_cpu_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    machine = Machine(clock)
    for cases in (linear_cases, attention_cases, forward_cases):
        kind = cases.__name__.removesuffix("_cases")
        if arguments.only and kind not in arguments.only and not arguments.only.startswith(kind):
            continue
        for case in cases():
            if arguments.only in case.name or arguments.only == kind:
                line = measure(case, machine, clock, arguments.budget_s)
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()

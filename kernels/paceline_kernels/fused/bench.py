"""Times of the Triton kernels on a GPU beside what that GPU can do, as JSON lines.

`python -m paceline_kernels.fused.bench [--only NAME]`. The device's read bandwidth and matrix rate
are measured in the same run, before and after each case.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline_kernels import ops
from paceline_kernels.fused import runtime
from paceline_kernels.paged_kv import FP8
from paceline_kernels.sampling import Rows

HEADS, KV_HEADS, BLOCK_SIZE, HIDDEN, FFN = 32, 8, 16, 4096, 14336
VOCAB = 128_000
READ_BYTES, MATRIX = 1 << 31, 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to time; flops and num_bytes: what it must compute and move at least."""

    name: str
    call: Callable[[], object]
    flops: float
    num_bytes: float


def attention_cases() -> Iterator[Case]:
    """Decodes of many and of few rows, chunks, and a mixture."""
    for head_dim in (64, 128, 256):
        for cache_dtype in (torch.bfloat16, FP8):
            for name, rows in {
                "decode": [(2048, 1)] * 64,
                "long decode": [(32768, 1)] * 4,
                "prefill": [(4096, 4096)] * 2,
                "chunk": [(8192, 512)],
                "mixed": [(2048, 1)] * 63 + [(4096, 1024)],
            }.items():
                yield _attention(name, rows, head_dim, cache_dtype)


def _attention(
    name: str, rows: list[tuple[int, int]], head_dim: int, cache_dtype: torch.dtype
) -> Case:
    counts = [-(-length // BLOCK_SIZE) for length, _ in rows]
    k_cache, v_cache = ops.new_kv_cache(
        sum(counts), BLOCK_SIZE, KV_HEADS, head_dim, cache_dtype, impl="triton"
    )
    shuffled = torch.randperm(sum(counts)).to(torch.int32)
    tables = torch.zeros(len(rows), max(counts), dtype=torch.int32)
    for row, blocks in enumerate(torch.split(shuffled, counts)):
        tables[row, : len(blocks)] = blocks
    new = torch.tensor([0] + [count for _, count in rows]).cumsum(0)
    q = torch.randn(int(new[-1]), HEADS, head_dim, dtype=torch.bfloat16, device="cuda")
    lengths = torch.tensor([length for length, _ in rows], dtype=torch.int32)
    arguments = (tables.cuda(), new.to(torch.int32).cuda(), lengths.cuda())
    scale = torch.ones(KV_HEADS, device="cuda") if cache_dtype == FP8 else None

    def call() -> Tensor:
        return ops.paged_attention(
            q,
            k_cache,
            v_cache,
            *arguments,
            softmax_scale=head_dim**-0.5,
            k_scale=scale,
            v_scale=scale,
            impl="triton",
        )

    seen = sum(count * (length - count) + count * (count + 1) / 2 for length, count in rows)
    kv_bytes = 2 * KV_HEADS * head_dim * cache_dtype.itemsize * sum(length for length, _ in rows)
    return Case(
        name=f"attention {name} {head_dim} {str(cache_dtype).removeprefix('torch.')}",
        call=call,
        flops=4.0 * HEADS * head_dim * seen,
        num_bytes=kv_bytes + 4.0 * q.numel(),
    )


def rowwise_cases() -> Iterator[Case]:
    """What touches every value once."""
    for tokens in (64, 4096):
        x = torch.randn(tokens, HIDDEN, dtype=torch.bfloat16, device="cuda")
        weight = torch.ones(HIDDEN, device="cuda")
        both = torch.randn(tokens, 2 * FFN, dtype=torch.bfloat16, device="cuda")

        def norm(x: Tensor = x, weight: Tensor = weight) -> object:
            return ops.rms_norm(x, weight, 1e-5, x, impl="triton")

        def silu(both: Tensor = both) -> object:
            return ops.silu_and_mul(both, impl="triton")

        for name, call, num_bytes in (
            ("residual, RMSNorm", norm, 8.0 * x.numel()),
            ("silu and mul", silu, 3.0 * both.numel()),
        ):
            yield Case(name=f"{name} {tokens}", call=call, flops=0.0, num_bytes=num_bytes)


def sampling_cases() -> Iterator[Case]:
    """Tokens of large vocabularies, with what the host decides."""
    for count in (1, 64):
        scores = torch.randn(count, VOCAB, device="cuda") * 3
        rows = Rows(
            places=np.arange(count),
            temperature=np.ones(count, np.float32),
            floor=np.full(count, -np.inf, np.float32),
        )

        def draw(scores: Tensor = scores, rows: Rows = rows) -> object:
            return ops.sample_gumbel(scores, rows, rows.places, impl="triton")

        def best(scores: Tensor = scores, rows: Rows = rows) -> object:
            return ops.sample_top(scores, rows, 512, with_norm=True, impl="triton")

        read = 4.0 * scores.numel()
        for name, call in (("draw", draw), ("best 512", best)):
            yield Case(name=f"{name} of {count} rows", call=call, flops=0.0, num_bytes=read)


class Device:
    """Measures the device's own rates (owns the probes' memory)."""

    def __init__(self) -> None:
        from triton import testing

        self.time_s: Callable[[Callable[[], object]], float] = lambda call: (
            testing.do_bench(call) / 1e3
        )
        self._data = torch.zeros(READ_BYTES // 4, device="cuda")
        self._matrix = torch.randn(MATRIX, MATRIX, dtype=torch.bfloat16, device="cuda")

    def rates(self) -> tuple[float, float]:
        """(bfloat16 operations per second, bytes read per second)."""
        product = self.time_s(lambda: self._matrix @ self._matrix)
        read = self.time_s(self._data.sum)
        return 2.0 * MATRIX**3 / product, READ_BYTES / read


def main() -> None:
    """Print one JSON line per case.

    Raises:
        ImplUnavailableError: there is no device.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    only = parser.parse_args().only
    runtime.require_device()
    device = Device()
    for cases in (attention_cases, rowwise_cases, sampling_cases):
        for case in cases():
            if only not in case.name:
                continue
            case.call()  # compiles, and chooses the configuration
            before, taken, after = device.rates(), device.time_s(case.call), device.rates()
            flops, read = (max(pair) for pair in zip(before, after, strict=True))
            line = {
                "name": case.name,
                "us": round(taken * 1e6, 1),
                "bandwidth_share": round(case.num_bytes / taken / read, 3),
                "matrix_share": round(case.flops / taken / flops, 3),
                "device_tflops": round(flops / 1e12, 1),
                "device_gbytes_per_s": round(read / 1e9, 1),
                "device": torch.cuda.get_device_name(),
            }
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

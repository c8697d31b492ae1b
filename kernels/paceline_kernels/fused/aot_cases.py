"""What is compiled ahead of time: every kernel, in each number format and class of head sizes.

Cases are launches on tensors without memory, made by the very functions that serve: what is
compiled here is what runs there, in the first of its configurations.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_kernels.fused.attention import AttentionCall, attention_launch
from paceline_kernels.fused.gumbel import groups_for, noisy_best_launch
from paceline_kernels.fused.kv_write import write_kv_launch
from paceline_kernels.fused.norm import rms_norm_launch
from paceline_kernels.fused.pointwise import embedding_launch, silu_and_mul_launch
from paceline_kernels.fused.rotary import rotary_launch
from paceline_kernels.fused.runtime import Launch
from paceline_kernels.fused.speculation import accepted_launch
from paceline_kernels.fused.splits import add_splits_launch
from paceline_kernels.fused.top_scores import TopBuffers, top_scores_launch

F32, BF16, F16, FP8 = torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn
HEAD_DIMS = (64, 128, 256)
"""One of each class, which is the next power of two: 80 and 96 run as 128 with the rest masked."""
HEADS, KV_HEADS, BLOCK_SIZE, HIDDEN, FFN, ROWS, CHUNK, SPLITS = 32, 8, 16, 4096, 14336, 64, 2048, 8
VOCAB, CANDIDATES, META = 128_000, 512, torch.device("meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A kind of device.

    Attributes:
        name: as in the table.
        backend, arch, warp_size: as triton's GPUTarget takes them.
        is_fp8_native: it converts e4m3 itself.
    """

    name: str
    backend: str
    arch: int | str
    warp_size: int
    is_fp8_native: bool


TARGETS = (
    Target(name="sm_80", backend="cuda", arch=80, warp_size=32, is_fp8_native=False),
    Target(name="sm_90", backend="cuda", arch=90, warp_size=32, is_fp8_native=True),
    Target(name="sm_100", backend="cuda", arch=100, warp_size=32, is_fp8_native=True),
    Target(name="gfx942", backend="hip", arch="gfx942", warp_size=64, is_fp8_native=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table.

    Attributes:
        kernel: name, with what distinguishes it.
        formats: of activations, and of the cache behind a slash.
        head_dim: None where the kernel knows no heads.
        launch: the call on a target.
    """

    kernel: str
    formats: str
    head_dim: int | None
    launch: Callable[[Target], Launch]


def cases() -> Iterator[Case]:
    """All of them, in the table's order."""
    for head_dim in HEAD_DIMS:
        for dtype, cache_dtype in ((BF16, BF16), (F16, F16), (F32, F32), (BF16, FP8)):
            for is_decode in (False, True):
                yield _attention(dtype, cache_dtype, head_dim, is_decode=is_decode)
        yield from (_add_splits(dtype, head_dim) for dtype in (BF16, F32))
        for dtype, cache_dtype in ((BF16, BF16), (F32, F32), (BF16, FP8)):
            yield _write_kv(dtype, cache_dtype, head_dim)
            yield _rotary(dtype, cache_dtype, head_dim)
    for dtype in (BF16, F16, F32):
        yield from _rowwise(dtype)
    yield from _sampling()


def name_of(dtype: torch.dtype) -> str:
    """Short, for the table."""
    return {F32: "fp32", BF16: "bf16", F16: "fp16", FP8: "e4m3"}[dtype]


def _empty(*sizes: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.empty(*sizes, dtype=dtype, device=META)


def _cache(head_dim: int, dtype: torch.dtype) -> Tensor:
    """As fused.path.new_kv_cache lays it out."""
    return _empty(1024, KV_HEADS, BLOCK_SIZE, head_dim, dtype=dtype).transpose(1, 2)


def _scale(dtype: torch.dtype) -> Tensor | None:
    return _empty(KV_HEADS) if dtype == FP8 else None


def _attention(
    dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int, *, is_decode: bool
) -> Case:
    tokens = ROWS if is_decode else CHUNK

    def launch(target: Target) -> Launch:
        call = AttentionCall(
            q=_empty(tokens, HEADS, head_dim, dtype=dtype),
            k_cache=_cache(head_dim, cache_dtype),
            v_cache=_cache(head_dim, cache_dtype),
            block_tables=_empty(ROWS, 256, dtype=torch.int32),
            cu_seqlens_q=_empty(ROWS + 1, dtype=torch.int32),
            seq_lens=_empty(ROWS, dtype=torch.int32),
            softmax_scale=head_dim**-0.5,
            sliding_window=None,
            soft_cap=None,
            k_scale=_scale(cache_dtype),
            v_scale=_scale(cache_dtype),
            is_fp8_native=target.is_fp8_native,
            precision="ieee" if target.backend == "hip" else "tf32x3",
        )
        config = call.configs()[0]
        if not is_decode:
            out = _empty(tokens, HEADS * head_dim, dtype=dtype)
            return attention_launch(call, config, 1, out, None)
        partial = _empty(tokens, HEADS, SPLITS, head_dim)
        sums = (_empty(tokens, HEADS, SPLITS), _empty(tokens, HEADS, SPLITS))
        return attention_launch(call, config, SPLITS, partial, sums)

    return Case(
        kernel="attention, split decode" if is_decode else "attention, chunks and mixed",
        formats=f"{name_of(dtype)}/{name_of(cache_dtype)}",
        head_dim=head_dim,
        launch=launch,
    )


def _add_splits(dtype: torch.dtype, head_dim: int) -> Case:
    def launch(_: Target) -> Launch:
        sums = (_empty(ROWS, HEADS, SPLITS), _empty(ROWS, HEADS, SPLITS))
        out = _empty(ROWS, HEADS * head_dim, dtype=dtype)
        return add_splits_launch(_empty(ROWS, HEADS, SPLITS, head_dim), sums, out)

    return Case(kernel="add splits", formats=name_of(dtype), head_dim=head_dim, launch=launch)


def _write_kv(dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int) -> Case:
    def launch(_: Target) -> Launch:
        k = _empty(CHUNK, KV_HEADS, head_dim, dtype=dtype)
        cache, scale = _cache(head_dim, cache_dtype), _scale(cache_dtype)
        slots = _empty(CHUNK, dtype=torch.int64)
        return write_kv_launch(k, k, cache, cache, slots, scale, scale)

    return Case(
        kernel="write KV",
        formats=f"{name_of(dtype)}/{name_of(cache_dtype)}",
        head_dim=head_dim,
        launch=launch,
    )


def _rotary(dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int) -> Case:
    def launch(_: Target) -> Launch:
        q = _empty(CHUNK, HEADS, head_dim, dtype=dtype)
        k = _empty(CHUNK, KV_HEADS, head_dim, dtype=dtype)
        cache, scale = _cache(head_dim, cache_dtype), _scale(cache_dtype)
        ints = _empty(CHUNK, dtype=torch.int64)
        return rotary_launch(
            q, k, ints, _empty(4096, head_dim), (k, cache, cache, ints, scale, scale)
        )

    return Case(
        kernel="rotary, write KV",
        formats=f"{name_of(dtype)}/{name_of(cache_dtype)}",
        head_dim=head_dim,
        launch=launch,
    )


def _rowwise(dtype: torch.dtype) -> Iterator[Case]:
    hidden = _empty(CHUNK, HIDDEN, dtype=dtype)
    weight = _empty(HIDDEN)
    both, half = _empty(CHUNK, 2 * FFN, dtype=dtype), _empty(CHUNK, FFN, dtype=dtype)
    table, ids = _empty(VOCAB, HIDDEN, dtype=dtype), _empty(CHUNK, dtype=torch.int64)
    launches = {
        "residual, RMSNorm": rms_norm_launch(hidden, hidden, weight, 1e-5, hidden, hidden),
        "silu and mul": silu_and_mul_launch(both, half),
        "embedding": embedding_launch(ids, table, hidden),
    }
    for kernel, launch in launches.items():
        yield _anywhere(kernel, name_of(dtype), launch)


def _sampling() -> Iterator[Case]:
    scores, ints = _empty(ROWS, VOCAB), _empty(ROWS, dtype=torch.int64)
    rows = (scores, ints, _empty(ROWS), _empty(ROWS))
    best = _empty(ROWS, groups_for(VOCAB))
    yield _anywhere("noisy best scores", "fp32", noisy_best_launch(*rows, ints, best))
    for with_mass in (False, True):
        buffers = TopBuffers(ROWS, CANDIDATES + 64, META)
        launch = top_scores_launch(*rows, CANDIDATES, buffers, with_mass=with_mass)
        yield _anywhere(f"top scores{', with mass' if with_mass else ''}", "fp32", launch)
    yield _anywhere("accepted drafts", "i64", accepted_launch(ints, ints, ints, ints))


def _anywhere(kernel: str, formats: str, launch: Launch) -> Case:
    """A case that is the same on every target."""
    return Case(kernel=kernel, formats=formats, head_dim=None, launch=lambda _: launch)

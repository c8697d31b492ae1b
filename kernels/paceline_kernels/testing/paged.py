"""Random paged batches for the attention tests, and the bound that the rounding allows."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_kernels import ops, reference
from paceline_kernels.paged_kv import FP8

POISON = float("nan")
NO_BLOCK = 2**30  # an entry that nobody may read


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows with random block tables over poisoned caches; float32 queries."""

    q: Tensor
    k: Tensor
    v: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    num_blocks: int
    block_size: int

    def scales(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The keyword arguments of an FP8 cache: uneven, and too small for the largest values."""
        if dtype != FP8:
            return {}
        largest = {"k_scale": self.k, "v_scale": self.v}
        return {
            name: values.float().abs().amax(dim=(0, 2)) * 0.8 / torch.finfo(FP8).max
            for name, values in largest.items()
        }

    def exact(self, caches: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The caches' values in float64, scales applied."""
        scales = self.scales(caches[0].dtype)
        k_cache, v_cache = (
            reference.dequantize(cache.double().flatten(0, 1), scales.get(name)).view(cache.shape)
            for cache, name in zip(caches, ("k_scale", "v_scale"), strict=True)
        )
        return k_cache, v_cache

    def caches(self, impl: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Poisoned caches into which the impl itself wrote the batch's keys and values."""
        _, kv_heads, head_dim = self.k.shape
        sizes = (self.num_blocks, self.block_size, kv_heads, head_dim)
        k_cache, v_cache = ops.new_kv_cache(*sizes, dtype, impl=impl)
        k_cache.fill_(POISON)
        v_cache.fill_(POISON)
        scales = self.scales(dtype)
        ops.write_kv(self.k, self.v, k_cache, v_cache, self.slot_mapping, impl=impl, **scales)
        return k_cache, v_cache

    def attend(
        self,
        impl: str,
        caches: tuple[Tensor, Tensor],
        *,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        """The impl's output."""
        return ops.paged_attention(
            self.q.to(torch.float64) if caches[0].dtype == torch.float64 else self.q,
            *caches,
            self.block_tables,
            self.cu_seqlens_q,
            self.seq_lens,
            softmax_scale=self.q.shape[2] ** -0.5,
            sliding_window=window,
            soft_cap=soft_cap,
            impl=impl,
            **self.scales(caches[0].dtype),
        )


def make_batch(
    rows: list[tuple[int, int]],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    seed: int = 0,
) -> Batch:
    """Rows of (context with new tokens, new tokens); blocks are drawn in random order."""
    shuffle = random.Random(seed)  # noqa: S311  (test data)
    noise = torch.Generator().manual_seed(seed)
    counts = [-(-length // block_size) for length, _ in rows]
    num_blocks = sum(counts) + 2
    free = list(range(1, num_blocks))
    shuffle.shuffle(free)
    tables = torch.full((len(rows), max(counts) + 1), NO_BLOCK, dtype=torch.int32)
    slots: list[int] = []
    for row, (length, _) in enumerate(rows):
        mine = [free.pop() for _ in range(counts[row])]
        tables[row, : counts[row]] = torch.tensor(mine, dtype=torch.int32)
        slots += [mine[i // block_size] * block_size + i % block_size for i in range(length)]
    new = [count for _, count in rows]
    cu_seqlens_q = torch.tensor([0, *new]).cumsum(0).to(torch.int32)

    def draw(tokens: int, count: int) -> Tensor:
        return torch.randn(tokens, count, head_dim, generator=noise)

    return Batch(
        q=draw(sum(new), heads),
        k=draw(len(slots), kv_heads),
        v=draw(len(slots), kv_heads),
        slot_mapping=torch.tensor(slots),
        block_tables=tables,
        cu_seqlens_q=cu_seqlens_q,
        seq_lens=torch.tensor([length for length, _ in rows], dtype=torch.int32),
        num_blocks=num_blocks,
        block_size=block_size,
    )


def error_bound(
    batch: Batch,
    exact: tuple[Tensor, Tensor],
    *,
    score_roundings: int = 2,
    soft_cap: float = 0.0,
    weights_dtype: torch.dtype = torch.float32,
    out_dtype: torch.dtype = torch.float32,
) -> float:
    """Largest error that float32 arithmetic may make against exact arithmetic.

    Args:
        batch: whose queries are used.
        exact: what the caches hold, in float64, scales applied.
        score_roundings: what happens to a score after its sum.
        soft_cap: of an implementation whose tanh is good to 8 units of 1, not of itself.
        weights_dtype: format to which weights are rounded before they meet the values.
        out_dtype: of the output.

    With u = 2^-24 and gamma(n) = n * u / (1 - n * u) (Higham, Accuracy and Stability, ch. 3):
    a score s = scale * q.k is off by at most gamma(d + 2) * S, where S = scale * |q|.|k| at its
    largest; 2 of the d + 2 are the products with the softmax scale and with the keys' scale. A
    weight exp(s - top) / total is then off by the factor exp(2 * gamma(d + 2) * S) (numerator and
    total), times (1 + gamma(n + 16)): n additions of the total, and 16 for exp (4 units of its
    polynomial), subtraction, product with the running rescale and the division. The output, a mean
    of values under these weights, gathers gamma(n) more, and one for the values' scale. All errors
    are at most that factor times V = the largest |v|, once for the weights and once for the sum.
    Narrower formats of weights and outputs add half a unit each.
    """
    u = 2.0**-24
    head_dim = batch.q.shape[2]
    length = int(batch.seq_lens.max())
    norms = batch.q.norm(dim=-1).max() * exact[0].nan_to_num().norm(dim=-1).max()
    score = float(norms) * head_dim**-0.5
    largest = float(exact[1].nan_to_num().abs().max())
    weights = 2 * ((head_dim + score_roundings) * score + 8 * soft_cap) * u + (length + 16) * u
    narrow = 0.0
    if weights_dtype != torch.float32:
        # Half a unit of each weight, or of the smallest one: the largest weight is 1.
        info = torch.finfo(weights_dtype)
        narrow += info.eps / 2 + length * info.smallest_normal * info.eps / 2
    if out_dtype != torch.float32:
        narrow += torch.finfo(out_dtype).eps / 2
    return float(1.01 * largest * (weights + (length + 2) * u + narrow))

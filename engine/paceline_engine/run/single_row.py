"""One request's tokens through a decoder, with a small cache of its own: for measurements."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline_engine.model.decoder import Decoder
from paceline_engine.model.kv_scales import KvScales
from paceline_engine.run.kv_cache import allocate_kv_cache
from paceline_kernels.decoder import DecoderBatch
from paceline_kernels.paged_kv import LayerKv


class SingleRow:
    """A decoder, and a cache for one text of at most `num_tokens` tokens.

    Attributes:
        kv: the cache; token i of the text lies at place i + block_size, behind the null block.
    """

    def __init__(
        self,
        decoder: Decoder,
        num_tokens: int,
        *,
        block_size: int,
        impl: str,
        dtype: torch.dtype,
        scales: KvScales | None = None,
    ) -> None:
        self._decoder = decoder
        self._block_size = block_size
        self._num_blocks = -(-num_tokens // block_size)
        num_blocks = self._num_blocks + 1
        self.kv: list[LayerKv] = allocate_kv_cache(
            decoder.config, num_blocks, block_size, dtype, impl, scales
        )

    def logits(self, token_ids: Sequence[int], *, chunk: int, every: int = 1) -> Tensor:
        """Next-token logits of each `every`-th position, [n, vocab] float32.

        Args:
            token_ids: of the whole text.
            chunk: tokens computed at a time.
            every: positions every - 1, 2 * every - 1, ... are taken.
        """
        parts = []
        for start in range(0, len(token_ids), chunk):
            end = min(start + chunk, len(token_ids))
            wanted = [at - start for at in range(start, end) if (at + 1) % every == 0]
            batch = self._batch(token_ids[start:end], start, wanted)
            parts.append(self._decoder.forward(batch, self.kv)[0])
        return torch.cat(parts)

    def hidden(self, token_ids: Sequence[int], *, chunk: int) -> Tensor:
        """States of every position after the final norm, [n, hidden] float32; as `logits`."""
        parts = []
        for start in range(0, len(token_ids), chunk):
            batch = self._batch(token_ids[start : start + chunk], start, [])
            _, hidden = self._decoder.forward(batch, self.kv, keep_hidden=True)
            assert hidden is not None
            parts.append(hidden)
        return torch.cat(parts)

    def _batch(self, token_ids: Sequence[int], start: int, logit_rows: list[int]) -> DecoderBatch:
        end = start + len(token_ids)
        positions = torch.arange(start, end)
        batch = DecoderBatch(
            token_ids=torch.tensor(token_ids, dtype=torch.int64),
            positions=positions,
            slot_mapping=positions + self._block_size,
            block_tables=torch.arange(1, self._num_blocks + 1, dtype=torch.int32).unsqueeze(0),
            cu_seqlens_q=torch.tensor([0, end - start], dtype=torch.int32),
            seq_lens=torch.tensor([end], dtype=torch.int32),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
        )
        return batch.to(self.kv[0].k_cache.device)

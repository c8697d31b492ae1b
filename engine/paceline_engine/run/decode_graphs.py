"""Decode steps as captured graphs: the launches of a whole step become one.

A graph computes `num_rows` rows of `width` tokens each (1, or 1 + the most drafts of a row) over
buffers of fixed addresses. A step with fewer rows is padded: rows behind the last are empty
requests that write nothing (slot -1) and read block 0, which is zero; tokens behind a row's last
write nothing either, and since attention is causal no real token sees them.

Graphs are captured from the largest down, the wide one of a size first, since the largest serves
every step, with drafts or without: after the first, what is missing costs only padding. The start
captures the largest of each width, so that decodes are not padded to the width of drafts. Who
captures decides when (load_model, Runner.do_spare_work); nothing here captures while it serves.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.run.device import Device, Graph
from paceline_kernels.decoder import DecoderBatch

MAX_ROWS = 512
"""Beyond it the launches are a small part of a step."""

Forward = Callable[[DecoderBatch], Tensor]
"""A step's logits of `logit_rows`, [n, vocab] float32, on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """Boot maxima that the buffers are sized by.

    Attributes:
        max_rows: bootMaxNumSeqs.
        max_drafts: of one row, the boot maximum; 0 without speculation.
        max_model_len: tokens of the longest request.
        block_size: tokens of a KV block.
        vocab_size: columns of the logits.
    """

    max_rows: int
    max_drafts: int
    max_model_len: int
    block_size: int
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Captured:
    graph: Graph
    num_rows: int


class DecodeGraphs:
    """The graphs of one decoder and one KV cache.

    Attributes:
        num_captured: graphs so far.
        num_replays: steps that a graph computed.
    """

    def __init__(self, device: Device, forward: Forward, limits: GraphLimits) -> None:
        self.num_captured = 0
        self.num_replays = 0
        self._device = device
        self._forward = forward
        self._limits = limits
        self._widths = sorted({1, 1 + limits.max_drafts})
        rows = min(limits.max_rows, MAX_ROWS)
        self._missing = [
            (size, width)
            for size in reversed(graph_sizes(rows))
            for width in reversed(self._widths)
        ]
        self._graphs: dict[int, list[_Captured]] = {width: [] for width in self._widths}
        self._buffers = _Buffers(limits, rows, self._widths[-1], device.torch_device)

    @property
    def is_complete(self) -> bool:
        """Whether every graph is captured."""
        return not self._missing

    @property
    def num_missing(self) -> int:
        """Graphs that are still to be captured."""
        return len(self._missing)

    def capture_largest(self) -> None:
        """Capture the largest graph of each width: what a start waits for."""
        for _ in self._widths:
            self.capture_next()

    def capture_next(self) -> None:
        """Capture the largest graph that is missing; tens of milliseconds in which nothing runs."""
        num_rows, width = self._missing[0]
        buffers = self._buffers
        buffers.clear(num_rows, width)
        batch = buffers.batch(num_rows, width)
        logits = buffers.logits[: num_rows * width]

        def run() -> None:
            logits.copy_(self._forward(batch))

        graph = self._device.capture(run)
        self._graphs[width].append(_Captured(graph=graph, num_rows=num_rows))
        self._missing.pop(0)
        self.num_captured += 1

    def run(self, batch: DecoderBatch) -> Tensor | None:
        """Compute a step's logits of `logit_rows`; None if no captured graph takes it.

        Args:
            batch: on the CPU.

        Returns:
            [n, vocab] on the device.
        """
        counts = batch.cu_seqlens_q.diff().long()
        num_rows, longest = len(counts), int(counts.max())
        for width in self._widths:
            fitting = [graph for graph in self._graphs[width] if graph.num_rows >= num_rows]
            if width < longest or not fitting:
                continue
            chosen = fitting[-1]  # captured from the largest down
            places = self._buffers.fill(batch, counts, chosen.num_rows, width)
            chosen.graph.replay()
            self.num_replays += 1
            wanted = places[batch.logit_rows].to(self._device.torch_device)
            return self._buffers.logits.index_select(0, wanted)
        return None


def graph_sizes(max_rows: int) -> list[int]:
    """1, 2, 4, then multiples of 8 up to 64, of 32 up to 256, of 64; and max_rows itself."""
    sizes = {1, 2, 4, *range(8, 64, 8), *range(64, 256, 32), *range(256, MAX_ROWS + 1, 64)}
    return sorted({size for size in sizes if size < max_rows} | {max_rows})


class _Buffers:
    """Inputs and logits at fixed addresses, shared by all graphs, and their image on the host."""

    def __init__(
        self, limits: GraphLimits, max_rows: int, max_width: int, device: torch.device
    ) -> None:
        self._limits = limits
        tokens = max_rows * max_width
        # Padding tokens of a request at its longest reach into blocks that it does not have.
        columns = -(-(limits.max_model_len + max_width) // limits.block_size)
        self._pad_columns = -(-max_width // limits.block_size)
        self._host = {
            "token_ids": torch.zeros(tokens, dtype=torch.int64),
            "positions": torch.zeros(tokens, dtype=torch.int64),
            "slot_mapping": torch.full((tokens,), -1, dtype=torch.int64),
            "seq_lens": torch.zeros(max_rows, dtype=torch.int32),
        }
        self._device = {name: host.to(device, copy=True) for name, host in self._host.items()}
        self._tables = torch.zeros(max_rows, columns, dtype=torch.int32, device=device)
        self._cu_seqlens = {
            width: torch.arange(max_rows + 1, dtype=torch.int32, device=device) * width
            for width in range(1, max_width + 1)
        }
        self._every_token = torch.arange(tokens, device=device)
        self.logits = torch.zeros(tokens, limits.vocab_size, device=device)

    def batch(self, num_rows: int, width: int) -> DecoderBatch:
        """Views of the first rows: what a graph reads."""
        tokens = num_rows * width
        return DecoderBatch(
            token_ids=self._device["token_ids"][:tokens],
            positions=self._device["positions"][:tokens],
            slot_mapping=self._device["slot_mapping"][:tokens],
            block_tables=self._tables[:num_rows],
            cu_seqlens_q=self._cu_seqlens[width][: num_rows + 1],
            seq_lens=self._device["seq_lens"][:num_rows],
            logit_rows=self._every_token[:tokens],
        )

    def clear(self, num_rows: int, width: int) -> None:
        """Make all rows padding."""
        self._reset(num_rows, width)
        self._tables[:num_rows, : self._pad_columns] = 0
        self._upload(num_rows, width)

    def fill(self, batch: DecoderBatch, counts: Tensor, num_rows: int, width: int) -> Tensor:
        """Lay a step's rows out in `num_rows` rows of `width`; returns each token's place."""
        used = len(counts)
        row_of = torch.repeat_interleave(torch.arange(used), counts)
        place = row_of * width + torch.arange(len(row_of)) - batch.cu_seqlens_q[row_of].long()
        self._reset(num_rows, width)
        host = self._host
        starts = batch.seq_lens - counts.int()
        host["seq_lens"][:used] = starts + width
        ahead = starts.long().unsqueeze(1) + torch.arange(width)
        last = self._limits.max_model_len - 1  # positions of padding tokens stay in the table
        host["positions"][: used * width] = ahead.clamp(max=last).flatten()
        for name in ("token_ids", "positions", "slot_mapping"):
            host[name][place] = getattr(batch, name)
        blocks = batch.block_tables.shape[1]
        self._tables[:used, :blocks].copy_(batch.block_tables)
        # Padding tokens of a row may read one entry further: an old one, or 0. Both are blocks.
        self._tables[used:num_rows, : self._pad_columns] = 0
        self._upload(num_rows, width)
        return place

    def _reset(self, num_rows: int, width: int) -> None:
        tokens, host = num_rows * width, self._host
        host["token_ids"][:tokens] = 0
        host["positions"][:tokens] = torch.arange(width).repeat(num_rows)
        host["slot_mapping"][:tokens] = -1
        host["seq_lens"][:num_rows] = width

    def _upload(self, num_rows: int, width: int) -> None:
        for name, host in self._host.items():
            size = num_rows if name == "seq_lens" else num_rows * width
            self._device[name][:size].copy_(host[:size], non_blocking=True)

"""The profile run: what a device's memory is needed for besides the KV cache, measured."""

import torch

from paceline_engine.model.decoder import Decoder
from paceline_engine.run.decode_graphs import DecodeGraphs, GraphLimits
from paceline_engine.run.device import Device
from paceline_engine.run.kv_cache import allocate_kv_cache
from paceline_engine.run.memory_plan import DeviceProfile
from paceline_kernels.decoder import DecoderBatch
from paceline_kernels.paged_kv import LayerKv


def profile_device(
    device: Device,
    decoder: Decoder,
    *,
    free_bytes: int,
    max_step_tokens: int,
    graph_limits: GraphLimits,
    kv_dtype: torch.dtype,
) -> DeviceProfile:
    """Run the largest step and capture two graphs, over a cache of nothing but the null block.

    Args:
        device: holds the weights already.
        decoder: loaded.
        free_bytes: of the device before the weights.
        max_step_tokens: boot maximum of the token budget.
        graph_limits: of the graphs that will be captured.
        kv_dtype: format of the KV cache.
    """
    after_weights = device.free_bytes()
    scales = decoder.kv_scales
    if kv_dtype.itemsize == 1 and scales is None:
        ones = torch.ones(decoder.config.num_kv_heads, device=device.torch_device)
        scales = ((ones, ones),) * decoder.config.num_layers
    kv = allocate_kv_cache(
        decoder.config,
        1,
        graph_limits.block_size,
        kv_dtype,
        device.ops_impl,
        scales if kv_dtype.itemsize == 1 else None,
    )
    step = _largest_step(device, max_step_tokens, graph_limits)
    activation = device.peak_bytes(lambda: _discard(decoder, step, kv))
    return DeviceProfile(
        total_bytes=device.total_bytes(),
        free_bytes=free_bytes,
        weight_bytes=free_bytes - after_weights,
        activation_bytes=activation,
        graph_bytes=_graph_bytes(device, decoder, kv, graph_limits),
    )


def _discard(decoder: Decoder, step: DecoderBatch, kv: list[LayerKv]) -> None:
    decoder.forward(step, kv)


def _graph_bytes(device: Device, decoder: Decoder, kv: list[LayerKv], limits: GraphLimits) -> int:
    """Buffers and the first graph, and for each other what the second takes: they share a pool."""
    before = device.free_bytes()
    graphs = DecodeGraphs(device, lambda batch: decoder.forward(batch, kv)[0], limits)
    graphs.capture_next()
    first = before - device.free_bytes()
    if graphs.is_complete:
        return first
    graphs.capture_next()
    second = before - device.free_bytes() - first
    return first + second * (1 + graphs.num_missing)


def _largest_step(device: Device, max_tokens: int, limits: GraphLimits) -> DecoderBatch:
    """Rows as long as a request may be, until the budget is used up; nothing is written."""
    longest = min(max_tokens, limits.max_model_len)
    counts = [longest] * (max_tokens // longest)
    if max_tokens % longest:
        counts.append(max_tokens % longest)
    columns = -(-longest // limits.block_size)
    positions = torch.cat([torch.arange(count) for count in counts])
    batch = DecoderBatch(
        token_ids=torch.zeros(max_tokens, dtype=torch.int64),
        positions=positions,
        slot_mapping=torch.full((max_tokens,), -1),
        block_tables=torch.zeros(len(counts), columns, dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, *counts]).cumsum(0).to(torch.int32),
        seq_lens=torch.tensor(counts, dtype=torch.int32),
        logit_rows=torch.arange(min(max_tokens, limits.max_rows * (1 + limits.max_drafts))),
    )
    return batch.to(device.torch_device)

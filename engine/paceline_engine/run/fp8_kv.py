"""An FP8 KV cache at the start: its scales, and how far its logits part from a full cache's."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from paceline_engine.core.errors import StartFailed
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.kv_scales import KvScales
from paceline_engine.run.divergence import Divergence, measure_divergence
from paceline_engine.run.single_row import SingleRow
from paceline_kernels.paged_kv import FP8

log = logging.getLogger(__name__)

MAX_TOKENS = 256
"""Of each text: about a third of a second on two cores for a model of 135M weights."""
LOGITS_EVERY = 4
"""The vocabulary's projection would cost more than all layers, were it done for each position."""
HEADROOM = 2.0
"""Values up to so many times the largest seen are stored without saturating. A binade of the 18
that the format has between its smallest and largest number is cheap; relative precision is 3 bits
at any scale."""
LOUD_KL_NATS = 0.1
"""A mean above it is told as a warning: wrong scales give a multiple, found ones a hundredth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Kv:
    """What is known before the cache is made.

    Attributes:
        scales: of each layer.
        source: "checkpoint" or "calibration".
        divergence: of logits with this cache from those with a full one.
    """

    scales: KvScales
    source: str
    divergence: Divergence


def prepare_fp8_kv(
    decoder: Decoder,
    texts: tuple[Sequence[int], Sequence[int]],
    *,
    full_dtype: torch.dtype,
    impl: str,
    block_size: int,
    chunk: int,
) -> Fp8Kv:
    """Take the checkpoint's scales or find some, and measure what they do to the logits.

    Args:
        decoder: loaded.
        texts: token ids; the first finds scales, the second, which these have not seen, judges
            them.
        full_dtype: format of the cache that FP8 is compared with.
        impl: of the cache and of attention.
        block_size: tokens in a block.
        chunk: tokens computed at a time; later chunks read back what earlier ones wrote.

    Raises:
        StartFailed: InvalidSettings: logits with this cache are not finite.
    """
    to_judge = texts[1][:MAX_TOKENS]
    row = partial(SingleRow, decoder, block_size=block_size, impl=impl)
    scales, source = find_scales(
        decoder, texts[0], full_dtype=full_dtype, impl=impl, block_size=block_size, chunk=chunk
    )
    every = min(LOGITS_EVERY, len(to_judge))
    right = row(len(to_judge), dtype=full_dtype)
    other = row(len(to_judge), dtype=FP8, scales=scales)
    divergence = measure_divergence(
        right.logits(to_judge, chunk=chunk, every=every),
        other.logits(to_judge, chunk=chunk, every=every),
    )
    found = Fp8Kv(scales=scales, source=source, divergence=divergence)
    _report(found, full_dtype)
    return found


def find_scales(
    decoder: Decoder,
    text: Sequence[int],
    *,
    full_dtype: torch.dtype,
    impl: str,
    block_size: int,
    chunk: int,
) -> tuple[KvScales, str]:
    """The checkpoint's scales, or some that fit a text; arguments as `prepare_fp8_kv`.

    Returns:
        Scales of each layer, and "checkpoint" or "calibration".
    """
    if decoder.kv_scales is not None:
        return decoder.kv_scales, "checkpoint"
    to_calibrate = text[:MAX_TOKENS]
    full = SingleRow(decoder, len(to_calibrate), dtype=full_dtype, block_size=block_size, impl=impl)
    full.logits(to_calibrate, chunk=chunk, every=len(to_calibrate) + 1)
    return scales_of(full), "calibration"


def scales_of(row: SingleRow) -> KvScales:
    """Scales that hold HEADROOM times the largest key and value of each head in a full cache."""

    def scale(cache: Tensor) -> Tensor:
        # The null block is zero, and so is what a text does not fill. A head that gave nothing but
        # zeros takes any scale.
        largest = cache.float().abs().amax(dim=(0, 1, 3)) * HEADROOM / torch.finfo(FP8).max
        return torch.where(largest > 0, largest, 1.0).contiguous()

    return tuple((scale(layer.k_cache), scale(layer.v_cache)) for layer in row.kv)


def _report(found: Fp8Kv, full_dtype: torch.dtype) -> None:
    measured = found.divergence
    if not all(value < float("inf") for value in measured.by_measure().values()):  # NaN is not
        raise StartFailed(
            "InvalidSettings",
            f"kvCacheDtype FP8 gives logits that are not finite, with scales of the {found.source}"
            "; set kvCacheDtype to Auto",
        )
    level = logging.WARNING if measured.mean_kl_nats > LOUD_KL_NATS else logging.INFO
    log.log(
        level,
        "FP8 KV cache, scales of the %s: against %s KV the next token's distribution is off by %s",
        found.source,
        str(full_dtype).removeprefix("torch."),
        ", ".join(f"{name} {value:.4g}" for name, value in measured.by_measure().items()),
    )

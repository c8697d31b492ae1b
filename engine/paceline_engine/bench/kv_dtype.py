"""What an FP8 KV cache costs and gives on a model: blocks, perplexity, divergence, greedy tokens.

Everything is compared with the full cache of the same weights in the same process; nothing here
depends on how busy the machine is.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline_crds.settings import EngineSettings, KvCacheDType
from paceline_engine.run.divergence import Divergence, measure_divergence
from paceline_engine.run.kv_cache import block_bytes, scales_in
from paceline_engine.run.offline import OfflineEngine
from paceline_engine.run.runner import Runner
from paceline_engine.run.single_row import SingleRow

WINDOW_TOKENS = 512
"""Of the text at a time: the logits of a window lie in memory twice."""
_CHUNK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFigures:
    """Over every position of a text, each window of it read from its start.

    Attributes:
        full_perplexity, fp8_perplexity: exp of the mean negative log-likelihood of the next token.
    """

    num_tokens: int
    full_perplexity: float
    fp8_perplexity: float
    divergence: Divergence


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Of greedy outputs with others of the same prompts.

    Attributes:
        identical: share of prompts whose outputs are the same to the last token.
        same_prefix: share of all tokens that come before an output's first difference.
    """

    num_prompts: int
    identical: float
    same_prefix: float


class PhaseClock:
    """Seconds by phase of a load: `progress` is what a loader calls."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock, self._phase, self._since = clock, "", clock()

    def progress(self, phase: str, _share: float) -> None:
        """A loader is in this phase."""
        now = self._clock()
        if phase != self._phase:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
            self._phase, self._since = phase, now


def measure(
    folder: Path,
    settings: EngineSettings,
    text: Sequence[int],
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
) -> dict[str, Any]:
    """All figures, JSON-ready.

    Args:
        folder: of the model.
        settings: of both engines; the KV cache's format is set here.
        text: token ids whose perplexity is taken.
        prompts: token ids, continued greedily.
        max_tokens: of each output.
    """
    clock = PhaseClock()
    full, fp8 = (
        Runner.load(folder, settings.model_copy(update={"kv_cache_dtype": kind}), clock.progress)
        for kind in (KvCacheDType.AUTO, KvCacheDType.FP8)
    )
    kinds = {"full": full, "fp8": fp8}
    sizes = {
        name: block_bytes(runner.decoder.config, runner.limits.block_size, _format(runner))
        for name, runner in kinds.items()
    }
    alone = {
        name: greedy(runner, prompts, max_tokens, together=False) for name, runner in kinds.items()
    }
    together = greedy(fp8, prompts, max_tokens, together=True)
    figures = compare_on_text(full, fp8, text)
    return {
        "formats": {name: str(_format(runner))[6:] for name, runner in kinds.items()},
        "scales": fp8.kernels["kv_scales"],
        "blocks_per_gib": {name: (1 << 30) // size for name, size in sizes.items()},
        "planned_blocks": {name: runner.limits.num_blocks for name, runner in kinds.items()},
        "text_tokens": figures.num_tokens,
        "perplexity": {"full": figures.full_perplexity, "fp8": figures.fp8_perplexity},
        "divergence": figures.divergence.by_measure(),
        "at_start": fp8.kv_divergence | {"seconds": clock.seconds["kv_scales"]},
        "greedy_fp8_to_full": _shown(agreement(alone["full"], alone["fp8"])),
        "greedy_fp8_batched_to_alone": _shown(agreement(alone["fp8"], together)),
    }


def greedy(
    runner: Runner, prompts: Sequence[Sequence[int]], max_tokens: int, *, together: bool
) -> list[list[int]]:
    """Greedy outputs of all prompts, one at a time or at once; nothing is taken from the cache."""
    session = OfflineEngine(runner, prefix_caching=False)
    for number, prompt in enumerate(prompts):
        session.submit(prompt, number, max_tokens=max_tokens, ignore_eos=True)
        if not together:
            session.run()
    session.run()
    return [session.outputs[number] for number in range(len(prompts))]


def agreement(right: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> Agreement:
    """How much of the outputs is the same."""
    same = [_same_prefix(one, two) for one, two in zip(right, other, strict=True)]
    lengths = [len(output) for output in right]
    return Agreement(
        num_prompts=len(lengths),
        identical=sum(a == b for a, b in zip(same, lengths, strict=True)) / len(lengths),
        same_prefix=sum(same) / sum(lengths),
    )


@torch.inference_mode()
def compare_on_text(full: Runner, fp8: Runner, text: Sequence[int]) -> TextFigures:
    """Perplexity with both caches, and the divergence between them, on the same tokens."""
    parts: list[Divergence] = []
    losses = {"full": 0.0, "fp8": 0.0}
    counts: list[int] = []
    for start in range(0, len(text) - 1, WINDOW_TOKENS):
        window = text[start : start + WINDOW_TOKENS + 1]
        right, other = _logits(full, window[:-1]), _logits(fp8, window[:-1])
        targets = torch.tensor(window[1:])
        losses["full"] += _loss(right, targets)
        losses["fp8"] += _loss(other, targets)
        parts.append(measure_divergence(right, other))
        counts.append(len(targets))
    total = sum(counts)
    weighted = list(zip(parts, counts, strict=True))
    return TextFigures(
        num_tokens=total,
        full_perplexity=math.exp(losses["full"] / total),
        fp8_perplexity=math.exp(losses["fp8"] / total),
        divergence=Divergence(
            mean_kl_nats=sum(part.mean_kl_nats * count for part, count in weighted) / total,
            max_kl_nats=max(part.max_kl_nats for part in parts),
            max_abs_logit=max(part.max_abs_logit for part in parts),
            top1_agreement=sum(part.top1_agreement * count for part, count in weighted) / total,
        ),
    )


def _logits(runner: Runner, token_ids: Sequence[int]) -> Tensor:
    row = SingleRow(
        runner.decoder,
        len(token_ids),
        block_size=runner.limits.block_size,
        impl=runner.kernels["attention"],
        dtype=_format(runner),
        scales=scales_in(runner.kv),
    )
    return row.logits(token_ids, chunk=_CHUNK)


def _loss(logits: Tensor, targets: Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))


def _format(runner: Runner) -> torch.dtype:
    return runner.kv[0].k_cache.dtype


def _same_prefix(one: Sequence[int], two: Sequence[int]) -> int:
    pairs = zip(one, two, strict=True)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), len(one))


def _shown(found: Agreement) -> dict[str, float]:
    return {
        "prompts": found.num_prompts,
        "identical": found.identical,
        "same_prefix": found.same_prefix,
    }

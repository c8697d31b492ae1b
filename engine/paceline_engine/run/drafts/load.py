"""The draft model at a start: whether it fits the target, its bytes, its weights, its KV layers."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline_crds.settings import EngineSettings, SpeculativeMethod
from paceline_engine.core.errors import StartFailed
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.families import load_config
from paceline_engine.model.weights import weight_bytes
from paceline_engine.run.calibration_text import calibration_texts
from paceline_engine.run.drafts.draft_kv import scratch_blocks
from paceline_engine.run.fp8_kv import find_scales
from paceline_engine.run.kernels import KernelChoice
from paceline_engine.run.kv_cache import allocate_kv_cache, block_bytes
from paceline_engine.run.memory_plan import activation_bytes
from paceline_kernels.paged_kv import FP8, LayerKv

HEAD_DIM_MULTIPLE = 8
"""What our C++ attention takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDrafts:
    """What a proposer that computes was given.

    Attributes:
        decoder: weights.
        kv: cache of each draft layer: the pool's blocks, then scratch ones.
    """

    decoder: Decoder
    kv: list[LayerKv]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStart:
    """A draft model before and while it is loaded; formats and kernels are the target's.

    Attributes:
        folder, config: of the draft model.
        target: its config.
        settings: booted.
        kernels: of the target.
    """

    folder: Path
    config: ModelConfig
    target: ModelConfig
    settings: EngineSettings
    kernels: KernelChoice

    def block_bytes(self) -> int:
        """What draft layers add to a block."""
        return block_bytes(self.config, self.settings.block_size, self.kernels.kv_dtype)

    def weight_bytes(self) -> int:
        """As `model.weights.weight_bytes`."""
        kernels = self.kernels
        return weight_bytes(self.folder, self.config, kernels.linear, kernels.linear_dtype)

    def working_bytes(self) -> int:
        """KV of guesses, logits of every request, and activations above the target's."""
        logits = booted(self.settings.boot_max_num_seqs) * self.config.vocab_size * 4
        tokens = booted(self.settings.boot_max_num_batched_tokens)
        own, targets = (activation_bytes(config, tokens) for config in (self.config, self.target))
        return num_scratch(self.settings) * self.block_bytes() + logits + max(0, own - targets)

    def load(
        self, max_positions: int, device: torch.device, progress: Callable[[float], None]
    ) -> Decoder:
        """Read the weights.

        Raises:
            StartFailed: UnsupportedModel.
        """
        kernels = self.kernels
        return Decoder.load(
            self.folder,
            self.config,
            impl=kernels.linear,
            linear_dtype=kernels.linear_dtype,
            ops_impl=kernels.ops,
            max_positions=max_positions,
            device=device,
            progress=progress,
        )

    def allocate(self, decoder: Decoder, num_blocks: int, max_model_len: int) -> LoadedDrafts:
        """Make the KV cache; an FP8 one gets scales of its own.

        Args:
            decoder: of `load`.
            num_blocks: of the pool.
            max_model_len: longest request.
        """
        kernels, size = self.kernels, self.settings.block_size
        scales = None
        if kernels.kv_dtype == FP8:
            text = calibration_texts(self.folder, self.config.vocab_size)[0][:max_model_len]
            scales, _ = find_scales(
                decoder,
                text,
                full_dtype=kernels.full_kv_dtype,
                impl=kernels.ops,
                block_size=size,
                chunk=booted(self.settings.boot_max_num_batched_tokens),
            )
        total = num_blocks + num_scratch(self.settings)
        kv = allocate_kv_cache(self.config, total, size, kernels.kv_dtype, kernels.ops, scales)
        return LoadedDrafts(decoder=decoder, kv=kv)


def num_scratch(settings: EngineSettings) -> int:
    """Scratch blocks for the guesses of a booted engine."""
    return scratch_blocks(
        booted(settings.boot_max_num_seqs),
        booted(settings.boot_max_speculative_num_tokens),
        settings.block_size,
    )


def prepare_drafts(
    folder: Path | None,
    settings: EngineSettings,
    target_folder: Path,
    target: ModelConfig,
    kernels: KernelChoice,
) -> DraftStart | None:
    """The draft model that the settings ask for, checked against the target; None for none.

    Args:
        folder: of the draft model; None if the method has none.
        settings: booted.
        target_folder: of the model that is served.
        target: its config.
        kernels: chosen for it.

    Raises:
        StartFailed: InvalidSettings or UnsupportedModel: it cannot draft for this target.
    """
    if settings.speculative_method is not SpeculativeMethod.DRAFT_MODEL:
        return None
    if folder is None:
        raise StartFailed(
            "InvalidSettings", "speculativeMethod DraftModel needs speculativeModel, got none"
        )
    config = load_config(folder)
    if config.vocab_size != target.vocab_size:
        raise _refused(
            folder, f"has a vocabulary of {config.vocab_size}, the target of {target.vocab_size}"
        )
    if not _has_same_tokens(folder, target_folder):
        raise _refused(folder, "numbers its tokens otherwise than the target (tokenizer.json)")
    if kernels.ops == "cpu" and config.head_dim % HEAD_DIM_MULTIPLE:
        raise _refused(folder, f"has heads of {config.head_dim}, which the target's kernels refuse")
    return DraftStart(
        folder=folder, config=config, target=target, settings=settings, kernels=kernels
    )


def _has_same_tokens(folder: Path, target_folder: Path) -> bool:
    """Whether both give each token the same id: what a text becomes is the target's business."""
    own, targets = (path / "tokenizer.json" for path in (folder, target_folder))
    if not (own.is_file() and targets.is_file()):
        return False
    left, right = own.read_bytes(), targets.read_bytes()
    return left == right or _ids(left) == _ids(right)


def _ids(tokenizer: bytes) -> Any:
    try:
        read = json.loads(tokenizer)
        added = {token["content"]: token["id"] for token in read["added_tokens"]}
        return added, read["model"]["vocab"]
    except (ValueError, LookupError, TypeError):
        return None


def _refused(folder: Path, why: str) -> StartFailed:
    return StartFailed(
        "UnsupportedModel",
        f"the model at {folder} cannot draft for this one: it {why}; name a smaller model of the "
        "same family as speculativeModel",
    )


def booted(value: int | None) -> int:
    """A maximum of booted settings."""
    if value is None:
        raise ValueError("settings must be booted: EngineSettings.booted()")
    return value

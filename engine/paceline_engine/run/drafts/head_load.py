"""A draft head at a start: whether it fits the target, its bytes, its weights, its KV layer."""

from dataclasses import dataclass
from pathlib import Path

from paceline_crds.settings import EngineSettings, SpeculativeMethod
from paceline_engine.core.errors import StartFailed
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.head import Head
from paceline_engine.model.head_format import (
    EAGLE,
    HeadFormat,
    eagle_config,
    mtp_config,
    mtp_format,
    refuse_without_mtp,
)
from paceline_engine.run.drafts.load import HEAD_DIM_MULTIPLE, booted, num_scratch
from paceline_engine.run.kernels import KernelChoice
from paceline_engine.run.kv_cache import allocate_kv_cache, block_bytes
from paceline_kernels.paged_kv import LayerKv

HEAD_METHODS = frozenset({SpeculativeMethod.EAGLE, SpeculativeMethod.MTP})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedHead:
    """What a proposer over the target's hidden states was given.

    Attributes:
        head: weights.
        kv: the cache of its one layer: the pool's blocks, then scratch ones.
    """

    head: Head
    kv: list[LayerKv]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadStart:
    """A head before and while it is loaded; formats and kernels are the target's.

    Attributes:
        folder: of the head; for MTP the target's.
        config: of its layer.
        form: names of its tensors.
        target_folder: of the target.
        settings: booted.
        kernels: of the target.
    """

    folder: Path
    config: ModelConfig
    form: HeadFormat
    target_folder: Path
    settings: EngineSettings
    kernels: KernelChoice

    def block_bytes(self) -> int:
        """What its layer adds to a block; never FP8, one layer of many saves little by it."""
        return block_bytes(self.config, self.settings.block_size, self.kernels.full_kv_dtype)

    def weight_bytes(self) -> int:
        """From sizes: the layer, the projection of both inputs, and a vocabulary of its own."""
        config, item = self.config, 4 if self.config.checkpoint_dtype == "float32" else 2
        hidden = config.hidden_size
        width = 2 * config.q_size + 2 * config.kv_size + 3 * config.intermediate_size + 2 * hidden
        return item * hidden * (width + config.vocab_size)

    def working_bytes(self) -> int:
        """KV of guesses, logits and states of every request, states of a step."""
        settings, config = self.settings, self.config
        seqs = booted(settings.boot_max_num_seqs)
        states = 4 * config.hidden_size * (booted(settings.boot_max_num_batched_tokens) + seqs)
        logits = 2 * seqs * config.vocab_size * 4
        return num_scratch(self.settings) * self.block_bytes() + logits + 4 * states

    def load(self, target: Decoder, max_positions: int) -> Head:
        """Read the weights.

        Raises:
            StartFailed: UnsupportedModel.
        """
        return Head.load(
            self.folder,
            self.config,
            self.form,
            target=target,
            target_folder=self.target_folder,
            max_positions=max_positions,
        )

    def allocate(self, head: Head, num_blocks: int) -> LoadedHead:
        """Make the KV cache for a pool of so many blocks."""
        kernels, total = self.kernels, num_blocks + num_scratch(self.settings)
        size, dtype = self.settings.block_size, kernels.full_kv_dtype
        return LoadedHead(
            head=head, kv=allocate_kv_cache(self.config, total, size, dtype, kernels.ops)
        )


def prepare_head(
    folder: Path | None,
    settings: EngineSettings,
    target_folder: Path,
    target: ModelConfig,
    kernels: KernelChoice,
) -> HeadStart | None:
    """The head that the settings ask for, checked against the target; None for none.

    Args:
        folder: of an EAGLE head; None if the method has none.
        settings: booted.
        target_folder: of the model that is served.
        target: its config.
        kernels: chosen for it.

    Raises:
        StartFailed: InvalidSettings or UnsupportedModel: it cannot draft for this target.
    """
    if settings.speculative_method not in HEAD_METHODS:
        return None
    if settings.speculative_method is SpeculativeMethod.MTP:
        refuse_without_mtp(target, target_folder)
        folder, config, form = target_folder, mtp_config(target), mtp_format(target)
    elif folder is None:
        raise StartFailed(
            "InvalidSettings", "speculativeMethod Eagle needs speculativeModel, got none"
        )
    else:
        config, form = eagle_config(folder, target), EAGLE
    if kernels.ops == "cpu" and config.head_dim % HEAD_DIM_MULTIPLE:
        raise StartFailed(
            "UnsupportedModel",
            f"the head at {folder} has heads of {config.head_dim}, which the target's kernels "
            f"refuse: they take multiples of {HEAD_DIM_MULTIPLE}",
        )
    return HeadStart(
        folder=folder,
        config=config,
        form=form,
        target_folder=target_folder,
        settings=settings,
        kernels=kernels,
    )

"""From a model folder and settings to everything that a runner owns."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from paceline_crds import objective
from paceline_crds.settings import EngineSettings, SpeculativeMethod
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.unsupported import refuse_at_start
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.families import load_config
from paceline_engine.model.head import Head
from paceline_engine.model.kv_scales import KvScales
from paceline_engine.model.weights import CPU, weight_bytes
from paceline_engine.run.calibration_text import calibration_texts
from paceline_engine.run.decode_graphs import DecodeGraphs, GraphLimits
from paceline_engine.run.device import Device
from paceline_engine.run.device_profile import profile_device
from paceline_engine.run.divergence import Divergence
from paceline_engine.run.drafts.head_load import HeadStart, LoadedHead, prepare_head
from paceline_engine.run.drafts.load import DraftStart, LoadedDrafts, prepare_drafts
from paceline_engine.run.fp8_kv import Fp8Kv, prepare_fp8_kv
from paceline_engine.run.host_memory import available_bytes
from paceline_engine.run.kernels import KernelChoice, choose_device_kernels, choose_kernels
from paceline_engine.run.kv_cache import allocate_kv_cache, block_bytes
from paceline_engine.run.memory_plan import (
    MemoryPlan,
    plan_device_memory,
    plan_host_tier,
    plan_memory,
    wanted_model_len,
)
from paceline_kernels.paged_kv import FP8, LayerKv

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """What `load_model` gives.

    Attributes:
        kv_divergence: of an FP8 KV cache; None for a full one.
        graphs: of a device; None on the host.
        drafts: of a proposer that computes; None for others.
    """

    decoder: Decoder
    kv: list[LayerKv]
    limits: EngineLimits
    settings: EngineSettings
    memory: MemoryPlan
    kernels: dict[str, str]
    sampler_impl: str
    kv_divergence: Divergence | None
    graphs: DecodeGraphs | None
    drafts: LoadedDrafts | LoadedHead | None

    @property
    def kv_layers(self) -> list[LayerKv]:
        """All KV that lies under the pool's block ids: the target's layers, then draft ones."""
        return [*self.kv, *(self.drafts.kv if self.drafts else ())]


def load_model(
    folder: Path,
    settings: EngineSettings,
    progress: Callable[[str, float], None],
    device: Device | None = None,
    draft_folder: Path | None = None,
) -> LoadedModel:
    """Load weights, plan memory, make the KV cache, capture the first graphs of a device.

    Args:
        folder: of the model.
        settings: as a person or an objective set them; the device decides the rest.
        progress: called with (phase, share done).
        device: None computes on the host.
        draft_folder: of the draft model or head, where the settings ask for one.

    Raises:
        StartFailed: with one of its reasons.
    """
    progress("config", 0.0)
    refuse_at_start(settings)
    config = load_config(folder)
    memory_bytes = None if device is None else device.total_bytes()
    booted = objective.for_device(settings, memory_bytes).booted()
    progress("kernels", 0.0)
    if device is None:
        kernels = choose_kernels(config, booted.dtype, booted.kv_cache_dtype)
    else:
        kernels = choose_device_kernels(booted.dtype, booted.kv_cache_dtype, device)
    booted = booted.model_copy(update={"dtype": kernels.dtype})
    log.info("kernels: %s", kernels.described())
    if kernels.fallback:
        log.warning("torch's kernels compute here, which is slower: %s", kernels.fallback)
    of_target = (booted, folder, config, kernels)
    drafts = prepare_drafts(draft_folder, *of_target) or prepare_head(draft_folder, *of_target)
    start = _Start(folder, config, booted, kernels, progress, drafts)
    with torch.inference_mode():
        decoder, drafter, memory = start.on_host() if device is None else start.on_device(device)
        fp8 = start.prepare_fp8(decoder, memory.max_model_len) if kernels.kv_dtype == FP8 else None
        progress("kv_cache", 0.0)
        scales = fp8.scales if fp8 else None
        kv = allocate_kv_cache(
            config,
            memory.num_blocks,
            booted.block_size,
            kernels.kv_dtype,
            kernels.ops,
            scales,
        )
        loaded_drafts = start.allocate_drafts(drafter, memory)
        graphs = None
        if device is not None:
            graphs = DecodeGraphs(
                device,
                lambda batch: decoder.forward(batch, kv)[0],
                start.graph_limits(memory.max_model_len),
            )
            graphs.capture_largest()
    progress("ready", 1.0)
    return LoadedModel(
        decoder=decoder,
        kv=kv,
        limits=start.limits(memory, scales or ()),
        settings=booted,
        memory=memory,
        kernels=kernels.described() | ({"kv_scales": fp8.source} if fp8 else {}),
        sampler_impl=kernels.sampler,
        kv_divergence=fp8.divergence if fp8 else None,
        graphs=graphs,
        drafts=loaded_drafts,
    )


@dataclass(frozen=True, slots=True)
class _Start:
    """What the stages of a load share."""

    folder: Path
    config: ModelConfig
    booted: EngineSettings
    kernels: KernelChoice
    progress: Callable[[str, float], None]
    drafts: DraftStart | HeadStart | None

    def on_host(self) -> tuple[Decoder, Decoder | Head | None, MemoryPlan]:
        """Plan from sizes, then load."""
        linear, drafts = (self.kernels.linear, self.kernels.linear_dtype), self.drafts
        available = available_bytes()
        host_tier = self._host_tier_bytes(available)
        memory = plan_memory(
            self.config,
            self.booted,
            weight_bytes=weight_bytes(self.folder, self.config, *linear),
            block_bytes=self._block_bytes(),
            available_bytes=available - host_tier,
            draft_bytes=(drafts.weight_bytes() + drafts.working_bytes()) if drafts else 0,
        )
        memory = replace(memory, host_tier_bytes=host_tier)
        decoder = self._decoder(memory.max_model_len, CPU)
        return decoder, self._drafter(decoder, memory.max_model_len, CPU), memory

    def on_device(self, device: Device) -> tuple[Decoder, Decoder | Head | None, MemoryPlan]:
        """Load, measure what a step and the graphs take, then plan."""
        host_tier = self._host_tier_bytes(available_bytes())
        free = device.free_bytes()
        longest = wanted_model_len(self.config, self.booted)
        decoder = self._decoder(longest, device.torch_device)
        drafter = self._drafter(decoder, longest, device.torch_device)
        profile = profile_device(
            device,
            decoder,
            free_bytes=free,
            max_step_tokens=self._max_step_tokens(),
            graph_limits=self.graph_limits(longest),
            kv_dtype=self.kernels.kv_dtype,
        )
        log.info("device profile: %s", profile)
        memory = plan_device_memory(
            self.config,
            self.booted,
            profile=profile,
            block_bytes=self._block_bytes(),
            draft_bytes=self.drafts.working_bytes() if self.drafts else 0,
        )
        return decoder, drafter, replace(memory, host_tier_bytes=host_tier)

    def allocate_drafts(
        self, drafter: Decoder | Head | None, memory: MemoryPlan
    ) -> LoadedDrafts | LoadedHead | None:
        """KV layers of what drafts, beside those of the target."""
        if isinstance(drafter, Head) and isinstance(self.drafts, HeadStart):
            return self.drafts.allocate(drafter, memory.num_blocks)
        if isinstance(drafter, Decoder) and isinstance(self.drafts, DraftStart):
            return self.drafts.allocate(drafter, memory.num_blocks, memory.max_model_len)
        return None

    def prepare_fp8(self, decoder: Decoder, max_model_len: int) -> Fp8Kv:
        """Scales of an FP8 cache, and what they do."""
        self.progress("kv_scales", 0.0)
        first, second = calibration_texts(self.folder, self.config.vocab_size)
        return prepare_fp8_kv(
            decoder,
            (first[:max_model_len], second[:max_model_len]),
            full_dtype=self.kernels.full_kv_dtype,
            impl=self.kernels.ops,
            block_size=self.booted.block_size,
            chunk=self._max_step_tokens(),
        )

    def graph_limits(self, max_model_len: int) -> GraphLimits:
        """Boot maxima of decode graphs."""
        return GraphLimits(
            max_rows=self._max_slots(),
            max_drafts=self._max_drafts(),
            max_model_len=max_model_len,
            block_size=self.booted.block_size,
            vocab_size=self.config.vocab_size,
        )

    def limits(self, memory: MemoryPlan, scales: KvScales) -> EngineLimits:
        """What the scheduler must know."""
        return EngineLimits(
            num_blocks=memory.num_blocks,
            num_host_blocks=memory.host_tier_bytes // self._block_bytes(),
            block_bytes=self._block_bytes(),
            block_size=self.booted.block_size,
            max_model_len=memory.max_model_len,
            max_slots=self._max_slots(),
            max_step_tokens=self._max_step_tokens(),
            vocab_size=self.config.vocab_size,
            eos_token_ids=self.config.eos_token_ids,
            cache_root=self._cache_root(scales),
        )

    def _cache_root(self, scales: KvScales) -> bytes:
        root = _cache_root(self.folder, self.config, self.kernels, scales)
        if self.drafts is None:
            return root
        drafts = _cache_root(self.drafts.folder, self.drafts.config, self.kernels, ())
        return hashlib.sha256(root + drafts).digest()

    def _decoder(self, max_positions: int, device: torch.device) -> Decoder:
        return Decoder.load(
            self.folder,
            self.config,
            impl=self.kernels.linear,
            linear_dtype=self.kernels.linear_dtype,
            ops_impl=self.kernels.ops,
            max_positions=max_positions,
            device=device,
            progress=lambda share: self.progress("weights", share),
        )

    def _host_tier_bytes(self, available: int) -> int:
        return plan_host_tier(
            self.booted, block_bytes=self._block_bytes(), available_bytes=available
        )

    def _drafter(
        self, target: Decoder, max_positions: int, device: torch.device
    ) -> Decoder | Head | None:
        if self.drafts is None:
            return None
        if isinstance(self.drafts, HeadStart):
            return self.drafts.load(target, max_positions)
        return self.drafts.load(
            max_positions, device, lambda share: self.progress("weights", share)
        )

    def _block_bytes(self) -> int:
        """Of all layers, draft ones included."""
        own = block_bytes(self.config, self.booted.block_size, self.kernels.kv_dtype)
        return own + (self.drafts.block_bytes() if self.drafts else 0)

    def _max_slots(self) -> int:
        return self.booted.boot_max_num_seqs or self.booted.max_num_seqs

    def _max_drafts(self) -> int:
        # A head needs hidden states with each step, which no graph keeps: nothing to capture for.
        is_none = self.booted.speculative_method is SpeculativeMethod.NONE
        if is_none or isinstance(self.drafts, HeadStart):
            return 0
        return self.booted.boot_max_speculative_num_tokens or 0

    def _max_step_tokens(self) -> int:
        return self.booted.boot_max_num_batched_tokens or self.booted.max_num_batched_tokens


def _cache_root(
    folder: Path, config: ModelConfig, kernels: KernelChoice, scales: KvScales
) -> bytes:
    """Model, revision, number format and scales: what a cached block depends on besides tokens."""
    digest = hashlib.sha256()
    formats = (str(kernels.linear_dtype), str(kernels.kv_dtype))
    digest.update(repr((config, formats)).encode())
    for scale in (scale for pair in scales for scale in pair):
        digest.update(scale.cpu().numpy().tobytes())
    for path in sorted(folder.glob("*.safetensors")):
        status = path.stat()
        digest.update(f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}".encode())
    return digest.digest()

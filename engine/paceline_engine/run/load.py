"""From a model folder and settings to everything that a runner owns."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline_crds import objective
from paceline_crds.settings import DType, EngineSettings
from paceline_engine.core.errors import StartFailed
from paceline_engine.core.limits import EngineLimits
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.families import load_config
from paceline_engine.model.kv_scales import KvScales
from paceline_engine.model.weights import weight_bytes
from paceline_engine.run.calibration_text import calibration_texts
from paceline_engine.run.divergence import Divergence
from paceline_engine.run.drafts.choice import is_built
from paceline_engine.run.fp8_kv import Fp8Kv, prepare_fp8_kv
from paceline_engine.run.host_memory import available_bytes
from paceline_engine.run.kernels import KernelChoice, choose_kernels
from paceline_engine.run.kv_cache import allocate_kv_cache, block_bytes
from paceline_engine.run.memory_plan import MemoryPlan, plan_memory
from paceline_kernels.paged_kv import FP8, LayerKv

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """What `load_model` gives.

    Attributes:
        kv_divergence: of an FP8 KV cache; None for a full one.
    """

    decoder: Decoder
    kv: list[LayerKv]
    limits: EngineLimits
    settings: EngineSettings
    memory: MemoryPlan
    kernels: dict[str, str]
    sampler_impl: str
    kv_divergence: Divergence | None


def load_model(
    folder: Path,
    settings: EngineSettings,
    progress: Callable[[str, float], None],
    *,
    gpu_memory_bytes: int | None = None,
) -> LoadedModel:
    """Load weights, plan memory, make the KV cache.

    Args:
        folder: of the model.
        settings: as a person or an objective set them; the device decides the rest.
        progress: told of each phase.
        gpu_memory_bytes: of the device; None means a CPU.

    Raises:
        StartFailed: with one of its reasons.
    """
    progress("config", 0.0)
    _refuse_unbuilt(settings)
    config = load_config(folder)
    booted = objective.for_device(settings, gpu_memory_bytes).booted()
    progress("kernels", 0.0)
    kernels = choose_kernels(config, booted.dtype, booted.kv_cache_dtype)
    booted = booted.model_copy(update={"dtype": kernels.dtype})
    kv_dtype = kernels.kv_dtype
    log.info("kernels: %s", kernels.described())
    memory = plan_memory(
        config,
        booted,
        weight_bytes=weight_bytes(folder, config, kernels.linear, kernels.linear_dtype),
        block_bytes=block_bytes(config, booted.block_size, kv_dtype),
        available_bytes=available_bytes(),
    )
    with torch.inference_mode():
        decoder = Decoder.load(
            folder,
            config,
            impl=kernels.linear,
            linear_dtype=kernels.linear_dtype,
            ops_impl=kernels.ops,
            max_positions=memory.max_model_len,
            progress=lambda share: progress("weights", share),
        )
        fp8 = None
        if kv_dtype == FP8:
            progress("kv_scales", 0.0)
            fp8 = _prepare_fp8(folder, decoder, kernels, booted, memory.max_model_len)
        progress("kv_cache", 0.0)
        kv = allocate_kv_cache(
            config,
            memory.num_blocks,
            booted.block_size,
            kv_dtype,
            kernels.ops,
            fp8.scales if fp8 else None,
        )
    limits = EngineLimits(
        num_blocks=memory.num_blocks,
        block_size=booted.block_size,
        max_model_len=memory.max_model_len,
        max_slots=booted.boot_max_num_seqs or booted.max_num_seqs,
        max_step_tokens=booted.boot_max_num_batched_tokens or booted.max_num_batched_tokens,
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        cache_root=_cache_root(folder, config, kernels, fp8.scales if fp8 else ()),
    )
    progress("ready", 1.0)
    return LoadedModel(
        decoder=decoder,
        kv=kv,
        limits=limits,
        settings=booted,
        memory=memory,
        kernels=kernels.described() | ({"kv_scales": fp8.source} if fp8 else {}),
        sampler_impl=kernels.sampler,
        kv_divergence=fp8.divergence if fp8 else None,
    )


def _refuse_unbuilt(settings: EngineSettings) -> None:
    """A setting whose feature this engine lacks is refused by name, never ignored."""
    unbuilt = {
        "dtype Float16": settings.dtype == DType.FLOAT16,
        f"speculativeMethod {settings.speculative_method}": not is_built(
            settings.speculative_method
        ),
        f"tensorParallelSize {settings.tensor_parallel_size}": settings.tensor_parallel_size != 1,
    }
    for what, is_asked in unbuilt.items():
        if is_asked:
            raise StartFailed("InvalidSettings", f"{what} is not built for this device")


def _prepare_fp8(
    folder: Path,
    decoder: Decoder,
    kernels: KernelChoice,
    booted: EngineSettings,
    max_model_len: int,
) -> Fp8Kv:
    first, second = calibration_texts(folder, decoder.config.vocab_size)
    return prepare_fp8_kv(
        decoder,
        (first[:max_model_len], second[:max_model_len]),
        full_dtype=kernels.full_kv_dtype,
        impl=kernels.ops,
        block_size=booted.block_size,
        chunk=booted.boot_max_num_batched_tokens or booted.max_num_batched_tokens,
    )


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

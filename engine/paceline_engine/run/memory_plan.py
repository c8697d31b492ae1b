"""What the memory is for: weights, activations of the largest step, and the KV blocks.

Pure: sizes in, plan out. The plan is made for the boot maxima, so that no live change of a limit
can run out of memory.
"""

from dataclasses import dataclass

from paceline_crds.quantities import number_of
from paceline_crds.settings import EngineSettings
from paceline_engine.core.errors import StartFailed
from paceline_engine.model.config import ModelConfig

CPU_KV_LIMIT_BYTES = 4 << 30
SCRATCH_BYTES = 128 << 20
"""Sampling and prompt log-probabilities work in slices that stay below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes by use, and the limits that follow from them.

    Attributes:
        num_blocks: KV blocks, the null block included.
        max_model_len: longest request, capped to what the blocks hold.
        host_tier_bytes: of the host's memory, for KV blocks that the cache gives away.
        draft_bytes: of what proposes drafts, but for its share of the KV cache.
    """

    weight_bytes: int
    activation_bytes: int
    logits_bytes: int
    kv_cache_bytes: int
    available_bytes: int
    num_blocks: int
    max_model_len: int
    graph_bytes: int = 0
    host_tier_bytes: int = 0
    draft_bytes: int = 0

    def by_use(self) -> dict[str, int]:
        """For logs, the admin API and the CLI."""
        graphs = {"graphs": self.graph_bytes} if self.graph_bytes else {}
        drafts = {"drafts": self.draft_bytes} if self.draft_bytes else {}
        return {
            "weights": self.weight_bytes,
            "activations": self.activation_bytes,
            "logits": self.logits_bytes,
            **graphs,
            **drafts,
            "kv_cache": self.kv_cache_bytes,
            **({"host_tier": self.host_tier_bytes} if self.host_tier_bytes else {}),
            "available": self.available_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """What was measured on a device before its KV cache is made, in bytes.

    Attributes:
        total_bytes: of the device.
        free_bytes: before the weights; the rest belongs to others and to the driver.
        weight_bytes: that loading took.
        activation_bytes: peak of a step of the largest token budget, its logits included.
        graph_bytes: of all decode graphs and their buffers.
    """

    total_bytes: int
    free_bytes: int
    weight_bytes: int
    activation_bytes: int
    graph_bytes: int


def plan_host_tier(settings: EngineSettings, *, block_bytes: int, available_bytes: int) -> int:
    """Bytes of the host tier: as many whole blocks as kvOffloadHostMemory holds.

    Args:
        settings: of the engine.
        block_bytes: size of one KV block over all layers.
        available_bytes: free on the host at start; on a CPU the rest is for everything else.

    Raises:
        StartFailed: OutOfMemory or InvalidSettings.
    """
    wanted = int(number_of(settings.kv_offload_host_memory or "0"))
    if wanted > available_bytes:
        raise StartFailed(
            "OutOfMemory",
            f"kvOffloadHostMemory is {_gib(wanted)}, but the host has {_gib(available_bytes)} "
            "left; lower it or give more memory",
        )
    if 0 < wanted < block_bytes:
        raise StartFailed(
            "InvalidSettings",
            f"kvOffloadHostMemory must hold a KV block of {block_bytes} bytes, got "
            f"{settings.kv_offload_host_memory}; raise it or leave it out",
        )
    return wanted - wanted % block_bytes


def plan_memory(
    config: ModelConfig,
    settings: EngineSettings,
    *,
    weight_bytes: int,
    block_bytes: int,
    available_bytes: int,
    draft_bytes: int = 0,
) -> MemoryPlan:
    """Divide the memory of a CPU host.

    Args:
        config: of the model.
        settings: booted, so that the boot maxima are numbers.
        weight_bytes: size of the weights as they lie in memory.
        block_bytes: size of one KV block over all layers.
        available_bytes: free at start, before the weights.
        draft_bytes: what proposes drafts takes, besides its share of `block_bytes`.

    Raises:
        StartFailed: OutOfMemory, KVCacheTooSmall or InvalidSettings.
    """
    wanted_len = wanted_model_len(config, settings)
    activation = activation_bytes(config, _boot(settings.boot_max_num_batched_tokens))
    logits = _max_logit_rows(settings) * config.vocab_size * 4 + SCRATCH_BYTES
    usable = int(float(settings.gpu_memory_utilization) * available_bytes)
    for_kv = usable - weight_bytes - activation - logits - draft_bytes
    if for_kv < 0:
        raise StartFailed(
            "OutOfMemory",
            f"the model needs {_gib(weight_bytes)} for weights and {_gib(activation + logits)} for "
            f"a step of {settings.boot_max_num_batched_tokens} tokens{_and_drafts(draft_bytes)}, "
            f"but {_gib(usable)} may be used; lower bootMaxNumBatchedTokens or give more memory",
        )
    most_bytes = min(for_kv, CPU_KV_LIMIT_BYTES)
    num_blocks = _num_blocks(settings, for_kv, most_bytes, block_bytes, wanted_len)
    max_model_len = _capped_model_len(settings, num_blocks, wanted_len)
    return MemoryPlan(
        weight_bytes=weight_bytes,
        activation_bytes=activation,
        logits_bytes=logits,
        kv_cache_bytes=num_blocks * block_bytes,
        available_bytes=available_bytes,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        draft_bytes=draft_bytes,
    )


def _max_logit_rows(settings: EngineSettings) -> int:
    """Positions that a step samples at most: each request's next, and that behind each draft."""
    most = _boot(settings.boot_max_num_seqs) * (1 + _boot(settings.boot_max_speculative_num_tokens))
    return min(most, _boot(settings.boot_max_num_batched_tokens))


def plan_device_memory(
    config: ModelConfig,
    settings: EngineSettings,
    *,
    profile: DeviceProfile,
    block_bytes: int,
    draft_bytes: int = 0,
) -> MemoryPlan:
    """Turn gpuMemoryUtilization into a number of blocks, from what was measured.

    The share is of the whole device; what others hold of it is not ours to use. `draft_bytes` are
    those that are not measured: the weights of a draft model are among the profile's.

    Raises:
        StartFailed: OutOfMemory, KVCacheTooSmall or InvalidSettings.
    """
    wanted_len = wanted_model_len(config, settings)
    share = int(float(settings.gpu_memory_utilization) * profile.total_bytes)
    usable = share - (profile.total_bytes - profile.free_bytes)
    needed = profile.weight_bytes + profile.activation_bytes + profile.graph_bytes + draft_bytes
    if usable < needed:
        raise StartFailed(
            "OutOfMemory",
            f"the model needs {_gib(profile.weight_bytes)} for weights, "
            f"{_gib(profile.activation_bytes)} for a step of "
            f"{settings.boot_max_num_batched_tokens} tokens and {_gib(profile.graph_bytes)} for "
            f"graphs{_and_drafts(draft_bytes)}, but of gpuMemoryUtilization "
            f"{settings.gpu_memory_utilization} of {_gib(profile.total_bytes)} others leave "
            f"{_gib(max(0, usable))}; raise it, lower bootMaxNumBatchedTokens or bootMaxNumSeqs, "
            "or take a larger device",
        )
    for_kv = usable - needed
    num_blocks = _num_blocks(settings, for_kv, for_kv, block_bytes, wanted_len)
    return MemoryPlan(
        weight_bytes=profile.weight_bytes,
        activation_bytes=profile.activation_bytes,
        logits_bytes=0,
        graph_bytes=profile.graph_bytes,
        draft_bytes=draft_bytes,
        kv_cache_bytes=num_blocks * block_bytes,
        available_bytes=profile.free_bytes,
        num_blocks=num_blocks,
        max_model_len=_capped_model_len(settings, num_blocks, wanted_len),
    )


def _capped_model_len(settings: EngineSettings, num_blocks: int, wanted_len: int) -> int:
    max_model_len = min(wanted_len, (num_blocks - 1) * settings.block_size)
    if settings.max_model_len is not None and max_model_len < wanted_len:
        raise StartFailed(
            "KVCacheTooSmall",
            f"maxModelLen is {wanted_len}, but the KV cache of {num_blocks} blocks holds "
            f"{max_model_len} tokens; lower maxModelLen to that, or give more memory",
        )
    return max_model_len


def wanted_model_len(config: ModelConfig, settings: EngineSettings) -> int:
    """The longest request that is asked for, before the blocks are counted.

    Raises:
        StartFailed: InvalidSettings: longer than the model can.
    """
    own = config.max_position_embeddings
    wanted = settings.max_model_len
    if wanted is None:
        return own
    if wanted > own:
        raise StartFailed(
            "InvalidSettings",
            f"maxModelLen must be <= {own}, the model's own limit, got {wanted}",
        )
    return wanted


def _num_blocks(
    settings: EngineSettings, for_kv: int, most_bytes: int, block_bytes: int, wanted_len: int
) -> int:
    """As pinned, or as many as `most_bytes` hold and the running requests can fill."""
    if settings.num_kv_blocks is not None:
        if settings.num_kv_blocks * block_bytes > for_kv:
            raise StartFailed(
                "OutOfMemory",
                f"numKvBlocks {settings.num_kv_blocks} needs "
                f"{_gib(settings.num_kv_blocks * block_bytes)}, but {_gib(for_kv)} is left for KV",
            )
        return settings.num_kv_blocks
    per_request = -(-wanted_len // settings.block_size)
    most_useful = _boot(settings.boot_max_num_seqs) * per_request + 1
    num_blocks = min(most_bytes // block_bytes, most_useful)
    if num_blocks < 2:
        raise StartFailed(
            "KVCacheTooSmall",
            f"{_gib(for_kv)} is left for KV, but two blocks of {settings.block_size} tokens need "
            f"{_gib(2 * block_bytes)}; give more memory or lower bootMaxNumBatchedTokens",
        )
    return num_blocks


def _and_drafts(size: int) -> str:
    return f", {_gib(size)} for drafts" if size else ""


def activation_bytes(config: ModelConfig, max_tokens: int) -> int:
    """Live tensors at the widest point of a layer, in float32, with a fifth for the allocator."""
    widths = (
        4 * config.hidden_size
        + 2 * (config.q_size + 2 * config.kv_size)
        + config.q_size
        + 3 * config.intermediate_size
    )
    return int(1.2 * max_tokens * widths * 4)


def _boot(value: int | None) -> int:
    if value is None:
        raise ValueError("settings must be booted: EngineSettings.booted()")
    return value


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"

"""Settings that have a name and a place already, but that no engine of this release builds.

The engine refuses them at its start and in its live API; the operator tells it by the condition
ConfigValid before a pod is made. Fields that never reach an engine are in `support`.
"""

from paceline_crds.settings import (
    EngineSettings,
    KvCacheDType,
    SchedulingPolicy,
    SpeculativeMethod,
)


def unsupported(settings: EngineSettings) -> list[tuple[str, str]]:
    """What of these settings this release cannot do.

    Returns:
        (camelCase field, sentence that names expected and got), in the order of the settings.
    """
    found: list[tuple[str, str]] = []
    if settings.tensor_parallel_size > 1:
        got = str(settings.tensor_parallel_size)
        found.append(_refusal("tensorParallelSize", "1", got, "no tensor parallelism"))
    if settings.scheduling_policy is SchedulingPolicy.FAIR:
        lack = "no fair queueing by tenant"
        found.append(_refusal("schedulingPolicy", "Fcfs or Priority", "Fair", lack))
    if settings.kv_cache_dtype is KvCacheDType.FP8:
        found.append(_refusal("kvCacheDtype", "Auto", "FP8", "no FP8 KV cache"))
    if settings.speculative_method is not SpeculativeMethod.NONE:
        got = settings.speculative_method.value
        found.append(_refusal("speculativeMethod", "None", got, "no speculative decoding"))
    if settings.speculative_num_tokens > 0:
        got = str(settings.speculative_num_tokens)
        found.append(_refusal("speculativeNumTokens", "0", got, "no speculative decoding"))
    if settings.inter_token_target_ms is not None:
        got = str(settings.inter_token_target_ms)
        found.append(_refusal("interTokenTargetMs", "absent", got, "no budget in milliseconds"))
    return found


def _refusal(field: str, expected: str, got: str, lack: str) -> tuple[str, str]:
    return field, f"{field} must be {expected}, got {got}: this release has {lack}"

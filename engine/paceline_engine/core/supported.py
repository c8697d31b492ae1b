"""What of the contract this release does not build: refused clearly, never ignored."""

from paceline_crds.settings import (
    EngineSettings,
    KvCacheDType,
    SchedulingPolicy,
    SpeculativeMethod,
)


def unsupported(settings: EngineSettings) -> list[str]:
    """One message for each setting whose value this engine cannot serve with; empty = fine."""
    messages = []
    if settings.scheduling_policy is SchedulingPolicy.FAIR:
        messages.append(
            "schedulingPolicy Fair is not built into this release; use Fcfs or Priority"
        )
    if settings.speculative_method is not SpeculativeMethod.NONE:
        messages.append(
            f"speculativeMethod {settings.speculative_method.value} is not built into this "
            "release; use None"
        )
    if settings.speculative_num_tokens:
        messages.append("speculativeNumTokens needs a speculativeMethod; use 0")
    if settings.tensor_parallel_size > 1:
        messages.append(
            f"tensorParallelSize must be 1 in this release, got {settings.tensor_parallel_size}"
        )
    if settings.kv_cache_dtype is KvCacheDType.FP8:
        messages.append("kvCacheDtype FP8 is not built into this release; use Auto")
    if settings.inter_token_target_ms is not None:
        messages.append(
            "interTokenTargetMs is not built into this release; leave it out and set "
            "maxNumBatchedTokens"
        )
    return messages

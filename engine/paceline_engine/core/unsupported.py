"""Settings that have a name and a place already, but that this release does not build."""

from paceline_crds.settings import (
    EngineSettings,
    KvCacheDType,
    SchedulingPolicy,
    SpeculativeMethod,
)
from paceline_engine.core.errors import SettingRefused, StartFailed


def unsupported(settings: EngineSettings) -> list[tuple[str, str]]:
    """What of these settings this release cannot do.

    Returns:
        (camelCase field, sentence that names expected and got), in the order of the settings.
    """
    found: list[tuple[str, str]] = []
    if settings.tensor_parallel_size > 1:
        found.append(
            _refusal(
                "tensorParallelSize",
                "1",
                str(settings.tensor_parallel_size),
                "no tensor parallelism",
            )
        )
    if settings.scheduling_policy is SchedulingPolicy.FAIR:
        found.append(
            _refusal("schedulingPolicy", "Fcfs or Priority", "Fair", "no fair queueing by tenant")
        )
    if settings.kv_cache_dtype is KvCacheDType.FP8:
        found.append(_refusal("kvCacheDtype", "Auto", "FP8", "no FP8 KV cache"))
    if settings.speculative_method is not SpeculativeMethod.NONE:
        found.append(
            _refusal(
                "speculativeMethod",
                "None",
                settings.speculative_method.value,
                "no speculative decoding",
            )
        )
    if settings.speculative_num_tokens > 0:
        got = str(settings.speculative_num_tokens)
        found.append(_refusal("speculativeNumTokens", "0", got, "no speculative decoding"))
    if settings.inter_token_target_ms is not None:
        got = str(settings.inter_token_target_ms)
        found.append(_refusal("interTokenTargetMs", "absent", got, "no budget in milliseconds"))
    return found


def refuse_at_start(settings: EngineSettings) -> None:
    """End a start that would ignore a setting.

    Raises:
        StartFailed: InvalidSettings, naming every field at fault.
    """
    if found := unsupported(settings):
        raise StartFailed("InvalidSettings", "; ".join(message for _, message in found))


def refuse_change(settings: EngineSettings) -> None:
    """End a live change to a value that this release does not build.

    Raises:
        SettingRefused: 400, naming the first field at fault.
    """
    if found := unsupported(settings):
        field, message = found[0]
        raise SettingRefused(400, field, message)


def _refusal(field: str, expected: str, got: str, lack: str) -> tuple[str, str]:
    return field, f"{field} must be {expected}, got {got}: this release has {lack}"

"""Fields of the resource that no release builds yet: told to the user, never ignored.

The engine itself refuses settings that it cannot do; these are the fields it never sees. An entry
goes away with the release that builds it.
"""

from collections.abc import Callable

from paceline_crds.spec import LLMDeploymentSpec, value_at

_NOT_YET: tuple[tuple[str, Callable[[LLMDeploymentSpec], bool]], ...] = (
    ("model.loraAdapters", lambda spec: bool(spec.model.lora_adapters)),
    ("scheduling.tenants", lambda spec: bool(value_at(spec, "scheduling.tenants"))),
    ("kvCache.offload", lambda spec: value_at(spec, "kvCache.offload") is not None),
    ("speculative.model", lambda spec: value_at(spec, "speculative.model") is not None),
    ("gateway.inferencePool", lambda spec: value_at(spec, "gateway.inferencePool") is not None),
    ("tensorParallelSize", lambda spec: (value_at(spec, "tensorParallelSize") or 1) > 1),
)


def not_supported(spec: LLMDeploymentSpec) -> list[str]:
    """One sentence for each field that is used and not built; reason `NotSupported`."""
    return [
        f"spec.{path} is not supported by this release; remove it"
        for path, is_used in _NOT_YET
        if is_used(spec)
    ]

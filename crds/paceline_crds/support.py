"""What no release builds yet, told to the user and never ignored.

An entry goes away with the release that builds it. Settings that an engine itself refuses are in
`unsupported`; here are the fields it never sees, and what stock vLLM has no flag for.
"""

from collections.abc import Callable

from paceline_crds.settings import EngineSettings, border_name, knobs
from paceline_crds.spec import LLMDeploymentSpec, Runtime, value_at
from paceline_crds.unsupported import unsupported

_NOT_YET: tuple[tuple[str, Callable[[LLMDeploymentSpec], bool]], ...] = (
    ("model.loraAdapters", lambda spec: bool(spec.model.lora_adapters)),
    ("scheduling.tenants", lambda spec: bool(value_at(spec, "scheduling.tenants"))),
    ("kvCache.offload", lambda spec: value_at(spec, "kvCache.offload") is not None),
    ("tensorParallelSize", lambda spec: (value_at(spec, "tensorParallelSize") or 1) > 1),
)
_NOT_YET_WITHOUT_VLLM: tuple[tuple[str, Callable[[LLMDeploymentSpec], bool]], ...] = (
    ("speculative.model", lambda spec: value_at(spec, "speculative.model") is not None),
    ("model.uri s3://", lambda spec: spec.model.uri.startswith("s3://")),
)
_NO_VLLM_FLAG = (
    "inter_token_target_ms",
    "priority_aging_s",
    "watermark",
    "queue_max_requests",
    "queue_max_tokens",
    "queue_timeout_s",
)


def not_supported(spec: LLMDeploymentSpec, settings: EngineSettings | None = None) -> list[str]:
    """One sentence for each field that is used and not built; reason `NotSupported`.

    Args:
        spec: what is wanted.
        settings: what it resolves to; None looks at fields of the resource alone.
    """
    is_vllm = spec.runtime is Runtime.VLLM
    listed = _NOT_YET if is_vllm else (*_NOT_YET, *_NOT_YET_WITHOUT_VLLM)
    found = [
        f"spec.{path} is not supported by this release; remove it"
        for path, is_used in listed
        if is_used(spec)
    ]
    if is_vllm:
        return found + _without_vllm_flag(spec)
    if settings is not None:
        told = "tensorParallelSize"  # said above, by its place in spec
        found += [sentence for field, sentence in unsupported(settings) if field != told]
    return found


def _without_vllm_flag(spec: LLMDeploymentSpec) -> list[str]:
    used = [name for name in _NO_VLLM_FLAG if value_at(spec, knobs()[name].spec) is not None]
    found = [
        f"spec.{knobs()[name].spec} ({border_name(name)}) has no counterpart in vLLM; remove it, "
        "or use runtime: Paceline"
        for name in used
    ]
    if spec.model.uri == "demo":
        found.append("spec.model.uri demo is known to runtime Paceline alone; name another model")
    return found

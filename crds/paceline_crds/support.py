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
    ("tensorParallelSize", lambda spec: (value_at(spec, "tensorParallelSize") or 1) > 1),
)
_NO_VLLM_FLAG = (
    "inter_token_target_ms",
    "priority_aging_s",
    "trust_tenant_header",
    "watermark",
    "queue_max_requests",
    "queue_max_tokens",
    "queue_timeout_s",
)


def not_supported(spec: LLMDeploymentSpec, settings: EngineSettings | None = None) -> list[str]:
    """One sentence for each field that is used and not built; reason `NotSupported`.

    Args:
        spec: what is wanted.
        settings: what it resolves to; None leaves out what a cluster's pods would be refused for.
    """
    found = [
        f"spec.{path} is not supported by this release; remove it"
        for path, is_used in _NOT_YET
        if is_used(spec)
    ]
    if settings is None:
        return found
    if spec.runtime is Runtime.VLLM:
        return found + _without_vllm_flag(spec)
    if spec.model.uri.startswith("s3://"):
        found.append("spec.model.uri s3:// is not supported by this release; use hf:// or pvc://")
    told = "tensorParallelSize"  # said above, by its place in spec
    return found + [sentence for field, sentence in unsupported(settings) if field != told]


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

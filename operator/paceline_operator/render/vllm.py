"""The container of runtime VLLM: a stock vLLM server behind the same manifest.

vLLM changes nothing while it runs, so every setting is a flag and every change needs new pods. It
ends its requests on SIGTERM after its own time-out and knows no drain: the pod waits in preStop
while routers look away.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from paceline_crds import routes
from paceline_crds.quantities import number_of
from paceline_crds.settings import DType, EngineSettings, KvCacheDType, SpeculativeMethod
from paceline_crds.spec import LLMDeploymentSpec, value_at
from paceline_operator.render import volumes
from paceline_operator.render.names import HTTP_PORT, HTTP_PORT_NAME
from paceline_operator.render.paceline import model_name
from paceline_operator.render.volumes import ModelPlace, Volumes
from paceline_operator.render.waits import Waits

_DTYPES = {
    DType.AUTO: "auto",
    DType.FLOAT32: "float32",
    DType.BFLOAT16: "bfloat16",
    DType.FLOAT16: "float16",
}
_METHODS = {
    SpeculativeMethod.NGRAM: "ngram",
    SpeculativeMethod.SUFFIX: "suffix",
    SpeculativeMethod.DRAFT_MODEL: "draft_model",
    SpeculativeMethod.EAGLE: "eagle",
    SpeculativeMethod.MTP: "mtp",
}
_PLAIN: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "dtype": ("--dtype", lambda value: _DTYPES[value]),
    "max_model_len": ("--max-model-len", str),
    "tensor_parallel_size": ("--tensor-parallel-size", str),
    "scheduling_policy": ("--scheduling-policy", lambda value: str(value).lower()),
    "max_num_batched_tokens": ("--max-num-batched-tokens", str),
    "max_num_seqs": ("--max-num-seqs", str),
    "long_prefill_tokens": ("--long-prefill-token-threshold", str),
    "kv_cache_dtype": (
        "--kv-cache-dtype",
        lambda value: "fp8" if value is KvCacheDType.FP8 else "auto",
    ),
    "gpu_memory_utilization": ("--gpu-memory-utilization", str),
    "block_size": ("--block-size", str),
}

_SWITCHES = {"prefix_caching": "enable-prefix-caching", "overlap": "async-scheduling"}

TAKES = frozenset({*_PLAIN, *_SWITCHES, "speculative_num_tokens", "kv_offload_host_memory"})
"""Settings that stock vLLM has a flag for."""


def container(
    spec: LLMDeploymentSpec, settings: EngineSettings, place: ModelPlace, waits: Waits
) -> dict[str, Any]:
    """Name, command, port, probes and environment; `pods` adds the rest."""
    probes = waits.probes(startup=routes.HEALTH, live=routes.HEALTH, ready=routes.HEALTH)
    return {
        "name": "engine",
        "command": ["vllm", "serve"],
        "args": _arguments(spec, settings, place),
        "ports": [{"name": HTTP_PORT_NAME, "containerPort": HTTP_PORT, "protocol": "TCP"}],
        "env": _environment(spec, place),
        **probes,
        **_pre_stop(waits),
    }


def add_volumes(into: Volumes, spec: LLMDeploymentSpec) -> None:
    """Shared memory for its processes, and the model's token; keys come as a variable."""
    into.add("shm", {"emptyDir": {"medium": "Memory"}}, "/dev/shm")  # noqa: S108 - in the pod
    volumes.of_secrets(into, spec, with_api_keys=False)


def _pre_stop(waits: Waits) -> dict[str, Any]:
    if waits.propagation_s == 0:
        return {}
    return {"lifecycle": {"preStop": {"sleep": {"seconds": waits.propagation_s}}}}


def _arguments(spec: LLMDeploymentSpec, settings: EngineSettings, place: ModelPlace) -> list[str]:
    model = place.argument
    revision = spec.model.revision
    if model.startswith("hf://"):
        model, _, in_uri = model.removeprefix("hf://").partition("@")
        revision = revision or in_uri
    given = [
        model.removeprefix("file://"),
        f"--served-model-name={model_name(spec)}",
        "--host=0.0.0.0",
        f"--port={HTTP_PORT}",
    ]
    if revision:
        given.append(f"--revision={revision}")
    for name, (flag, text) in _PLAIN.items():
        value = getattr(settings, name)
        if name in settings.model_fields_set and value is not None:
            given.append(f"{flag}={text(value)}")
    for name, flag in _SWITCHES.items():
        if name in settings.model_fields_set:
            given.append(f"--{flag}" if getattr(settings, name) else f"--no-{flag}")
    given += _speculation(spec, settings)
    if settings.kv_offload_host_memory is not None:
        size = number_of(settings.kv_offload_host_memory) / (1 << 30)
        given += [f"--kv-offloading-size={float(size):g}", "--kv-offloading-backend=native"]
    return [*given, *(spec.extra_args or ())]


def _speculation(spec: LLMDeploymentSpec, settings: EngineSettings) -> list[str]:
    method = _METHODS.get(settings.speculative_method)
    if method is None or settings.speculative_num_tokens == 0:
        return []
    config: dict[str, Any] = {
        "method": method,
        "num_speculative_tokens": settings.speculative_num_tokens,
    }
    for key, path in (
        ("model", "speculative.model"),
        ("prompt_lookup_min", "speculative.minLookup"),
        ("prompt_lookup_max", "speculative.maxLookup"),
    ):
        if (value := value_at(spec, path)) is not None:
            config[key] = value.removeprefix("hf://") if key == "model" else value
    return [f"--speculative-config={json.dumps(config, sort_keys=True)}"]


def _environment(spec: LLMDeploymentSpec, place: ModelPlace) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = [
        {"name": "HOME", "value": volumes.CACHE_FOLDER},
        {"name": "XDG_CACHE_HOME", "value": volumes.CACHE_FOLDER},
        {"name": "VLLM_CACHE_ROOT", "value": f"{volumes.CACHE_FOLDER}/vllm"},
        {"name": "HF_HOME", "value": f"{place.cache_folder}/huggingface"},
        {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
    ]
    env += volumes.hub_environment(spec, place)
    key = value_at(spec, "service.apiKeySecretRef")
    if key is not None:
        source = {"secretKeyRef": {"name": key.name, "key": key.key}}
        env.append({"name": "VLLM_API_KEY", "valueFrom": source})
    return env

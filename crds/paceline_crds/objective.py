"""Settings to start with: what a person wrote, else an objective's values, else the device's."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from paceline_crds.errors import InvalidSettings
from paceline_crds.settings import EngineSettings, knobs
from paceline_crds.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Settings and where each came from.

    Attributes:
        settings: built from what is set only, so `model_fields_set` tells it from defaults.
        sources: snake_case name -> source, for every setting.
    """

    settings: EngineSettings
    sources: Mapping[str, Source]


LARGE_GPU_BYTES = 70_000_000_000
"""From here on a GPU starts with the large values, as in vLLM."""


class Objective(StrEnum):
    """What matters most to the users."""

    INTERACTIVE = "Interactive"
    """Streams must be smooth."""
    FIRST_TOKEN = "FirstToken"  # noqa: S105 - a name, not a secret
    """The answer must start soon."""
    THROUGHPUT = "Throughput"
    """Only the total counts."""


STARTING_VALUES: Mapping[Objective, Mapping[str, Any]] = MappingProxyType(
    {
        Objective.INTERACTIVE: {
            "max_num_batched_tokens": 2048,
            "boot_max_num_batched_tokens": 4096,
            "max_num_seqs": 128,
            "boot_max_num_seqs": 256,
        },
        Objective.FIRST_TOKEN: {
            "max_num_batched_tokens": 8192,
            "boot_max_num_batched_tokens": 16384,
            "max_num_seqs": 256,
        },
        Objective.THROUGHPUT: {
            "max_num_batched_tokens": 16384,
            "boot_max_num_batched_tokens": 32768,
            "max_num_seqs": 512,
            "gpu_memory_utilization": "0.95",
        },
    }
)
"""The long-prefill cap of Interactive needs no entry: it is on wherever it is not turned off."""


def device_values(gpu_memory_bytes: int | None) -> dict[str, int]:
    """Starting values without an objective; None means a CPU."""
    if gpu_memory_bytes is None:
        return {"max_num_batched_tokens": 2048, "max_num_seqs": 128}
    if gpu_memory_bytes >= LARGE_GPU_BYTES:
        return {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}
    return {"max_num_batched_tokens": 2048, "max_num_seqs": 256}


def below_boot_maxima(pinned: Mapping[str, Any], starting: Mapping[str, Any]) -> dict[str, Any]:
    """The starting values that are left once a person pinned some: none breaks a boot maximum.

    A starting value above a pinned boot maximum is lowered to it; a starting boot maximum goes
    away when its own setting is pinned above it (twice the pinned value then holds).

    Args:
        pinned: snake_case name -> value, as a person wrote them.
        starting: candidates for the names that are not pinned.
    """
    left = {name: value for name, value in starting.items() if name not in pinned}
    for name, knob in knobs().items():
        boot = knob.boot_maximum
        if not boot:
            continue
        default = EngineSettings.model_fields[name].default
        limit = pinned.get(boot)
        if name in pinned:
            if boot in left and left[boot] < pinned[name]:
                del left[boot]
        elif limit is not None and left.get(name, default) > limit:
            left[name] = limit
    return left


def start(written: Mapping[str, Any], objective: Objective | None) -> Resolved:
    """Settings from what a person wrote (manifest or flags) and an objective.

    Raises:
        InvalidSettings: a value is out of its bounds or above its own boot maximum.
    """
    starting: Mapping[str, Any] = STARTING_VALUES[objective] if objective else {}
    filled = below_boot_maxima(written, starting)
    try:
        settings = EngineSettings(**written, **filled)
    except ValidationError as error:
        raise InvalidSettings(
            "\n".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
        ) from error
    sources = {
        name: Source.SPEC
        if name in written
        else Source.OBJECTIVE
        if name in starting and name in filled
        else Source.DEFAULT
        for name in knobs()
    }
    return Resolved(settings=settings, sources=sources)


def for_device(settings: EngineSettings, gpu_memory_bytes: int | None) -> EngineSettings:
    """Fill in what neither a person nor an objective set, once the device is known.

    "Set" is what the settings were built with (`model_fields_set`).
    """
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    return EngineSettings(**given, **below_boot_maxima(given, device_values(gpu_memory_bytes)))

"""Settings that have a name and a place already, but that no engine of this release builds.

The engine refuses them at its start and in its live API; the operator tells it by the condition
ConfigValid before a pod is made; the reference and the flags' help note it. Fields that never reach
an engine are in `support`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from paceline_crds.settings import DType, EngineSettings, border_name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """What this release takes of one setting.

    Attributes:
        accepted: the values that it takes, in words.
        lack: what is not built.
        is_accepted: of a value.
    """

    accepted: str
    lack: str
    is_accepted: Callable[[Any], bool]


_LIMITS = {
    "dtype": _Limit(
        accepted="Auto, Float32 or BFloat16",
        lack="no float16 activations",
        is_accepted=lambda value: value != DType.FLOAT16,
    ),
    "tensor_parallel_size": _Limit(
        accepted="1", lack="no tensor parallelism", is_accepted=lambda value: value == 1
    ),
}


def unsupported(settings: EngineSettings) -> list[tuple[str, str]]:
    """What of these settings this release cannot do.

    Returns:
        (camelCase field, sentence that names expected and got).
    """
    found: list[tuple[str, str]] = []
    for name, limit in _LIMITS.items():
        value = getattr(settings, name)
        if not limit.is_accepted(value):
            field = border_name(name)
            got = value.value if isinstance(value, StrEnum) else value
            found.append(
                (
                    field,
                    f"{field} must be {limit.accepted}, got {got}: this release has {limit.lack}",
                )
            )
    return found


def note(name: str) -> str:
    """What to know of a setting in this release; empty if all of it is built.

    Args:
        name: snake_case.
    """
    limit = _LIMITS.get(name)
    if limit is None:
        return ""
    return f"In this release it must be {limit.accepted}: it has {limit.lack}."

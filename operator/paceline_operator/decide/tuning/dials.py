"""The settings that the tuner may turn: value in force, bounds, and why one is stuck."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from paceline_crds.knob import ChangeClass
from paceline_crds.objective import Resolved
from paceline_crds.settings import EngineSettings, KvCacheDType, border_name, border_names, knobs
from paceline_crds.source import Source
from paceline_crds.spec import LLMDeploymentSpec
from paceline_crds.status_tuning import OverlayEntry
from paceline_crds.unsupported import unsupported
from paceline_operator.resources import overlay
from paceline_operator.resources.overlay import text_of, value_of

RESTART = ChangeClass.RESTART
_NO_MAXIMUM = {"watermark": 0.1, "gpu_memory_utilization": 0.96}
"""Largest values of settings that have no boot maximum, where spec gives no bounds."""
_NO_MINIMUM = frozenset({"speculative_num_tokens", "watermark"})
"""Settings that may go to their absolute minimum, not only to half of where they started."""


class Stuck(StrEnum):
    """Why a setting cannot be turned at all."""

    PINNED = "Pinned"
    NOT_SUPPORTED = "NotSupported"
    NOT_KNOWN = "NotKnown"
    NOT_ALLOWED = "NotAllowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """One tunable setting of one deployment.

    Attributes:
        name: camelCase.
        text: value in force as status shows it; "" where nobody pins it.
        value: what that amounts to as a number; for an enum 0.
        least, most: bounds, inclusive.
        allowed: values of an enum that may be set.
        base, base_source: what an overlay entry replaces.
        stuck: None if it can be turned.
        place: dotted place below spec.
    """

    name: str
    text: str
    value: float
    least: float
    most: float
    allowed: tuple[str, ...] = ()
    change: ChangeClass
    base: str
    base_source: Source
    place: str
    stuck: Stuck | None = None

    def entry(self, value: str, since: str) -> OverlayEntry:
        """The overlay entry that sets a value."""
        return OverlayEntry(
            name=self.name, value=value, base=self.base, base_source=self.base_source, since=since
        )


Dials = Mapping[str, Dial]
"""By camelCase name."""


def of(
    spec: LLMDeploymentSpec,
    base: Resolved,
    wanted: EngineSettings,
    said: Mapping[str, Any],
) -> dict[str, Dial]:
    """Every tunable setting.

    Args:
        spec: bounds, and what a person pinned.
        base: without the overlay.
        wanted: with it.
        said: camelCase name -> JSON value as an engine has it; empty if none answered.
    """
    return {
        border_name(name): _dial(name, spec, base, wanted, said)
        for name, knob in knobs().items()
        if knob.tunable
    }


def caps(dials: Dials) -> dict[str, float]:
    """Values in force that are known numbers."""
    return {name: dial.value for name, dial in dials.items() if dial.value > 0}


def _dial(
    name: str,
    spec: LLMDeploymentSpec,
    base: Resolved,
    wanted: EngineSettings,
    said: Mapping[str, Any],
) -> Dial:
    label, knob = border_name(name), knobs()[name]
    in_force = said.get(label, getattr(wanted, name))
    bounds = overlay.bounds_of(spec, name)
    least, most = _limits(name, base, wanted, said)
    allowed: tuple[str, ...] = ()
    if bounds is not None and "allowed" in type(bounds).model_fields:
        allowed = tuple(str(item) for item in bounds.given("allowed"))
    elif bounds is not None:
        low, high = bounds.given("min"), bounds.given("max")
        least = least if low is None else float(low)
        most = most if high is None else min(float(high), _boot(name, wanted, said) or float(high))
    stuck = None
    if not overlay.may_touch(spec, base, name):
        stuck = Stuck.PINNED
    elif name == "kv_cache_dtype" and not allowed:
        stuck = Stuck.NOT_ALLOWED
    elif most < least:
        stuck = Stuck.NOT_KNOWN
    return Dial(
        name=label,
        text=text_of(in_force),
        value=effective(name, in_force, wanted, said),
        least=least,
        most=most,
        allowed=allowed,
        change=knob.change,
        base=text_of(getattr(base.settings, name)),
        base_source=base.sources[name],
        place=knob.spec,
        stuck=stuck,
    )


def effective(name: str, value: Any, wanted: EngineSettings, said: Mapping[str, Any]) -> float:
    """A setting as a number: what the engine makes of an absent one, too."""
    if name == "long_prefill_tokens" and not value:
        label = border_name("max_num_batched_tokens")
        budget = float(said.get(label, wanted.max_num_batched_tokens))
        return budget if value == 0 else budget // 2
    if name == "inter_token_target_ms" and value is None:
        # Off only where it is 0: an absent one follows the target of streams.
        value = said.get(border_name("slo_itl_ms"), wanted.slo_itl_ms)
    if isinstance(value, KvCacheDType) or value is None:
        return 0.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def is_supported(dial: Dial, value: str) -> bool:
    """Whether this release's engines take a value."""
    return _is_supported(dial.name, value)


@lru_cache(maxsize=4096)
def _is_supported(label: str, value: str) -> bool:
    name = border_names()[label]
    made = value_of(name, value)
    if made is None:
        return False
    alone = EngineSettings().model_copy(update={name: made})  # whatever else it would need
    return not any(field == label for field, _ in unsupported(alone))


def _boot(name: str, wanted: EngineSettings, said: Mapping[str, Any]) -> float | None:
    boot = knobs()[name].boot_maximum
    if not boot:
        return None
    limit = said.get(border_name(boot), getattr(wanted.booted(), boot))
    return float(limit) if limit is not None else None


def _limits(
    name: str, base: Resolved, wanted: EngineSettings, said: Mapping[str, Any]
) -> tuple[float, float]:
    """From half of where it started to what memory is planned for."""
    started = effective(name, getattr(base.settings, name), base.settings, {})
    boot = _boot(name, wanted, said)
    if boot is not None and base.sources[name] is Source.DEFAULT and name not in _NO_MINIMUM:
        # An engine that chose its own start value plans for twice as much.
        started = min(started, boot / 2) if not said else boot / 2
    least = 0.0 if name in _NO_MINIMUM else started / 2
    if name == "long_prefill_tokens":
        return least, effective(
            "max_num_batched_tokens",
            said.get("maxNumBatchedTokens", wanted.max_num_batched_tokens),
            wanted,
            said,
        )
    if name == "inter_token_target_ms":
        target = wanted.slo_itl_ms
        return (target / 2, float(target)) if target else (1.0, 0.0)
    if boot is not None:
        return least, boot
    return least, _NO_MAXIMUM.get(name, started)

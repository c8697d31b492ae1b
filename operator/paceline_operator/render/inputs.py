"""What a template is made of beside spec, pinned at its Deployment: upgrades restart nothing.

The annotation `paceline.dev/inputs` holds the renderer's version and every resolved input outside
spec. Rendering again reads these, not what the chart says by now.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from paceline_crds.knob import ChangeClass
from paceline_crds.objective import Resolved, device_values
from paceline_crds.settings import EngineSettings, border_name, border_names, knobs
from paceline_crds.source import Source
from paceline_crds.spec import LLMDeploymentSpec, Runtime
from paceline_crds.status_tuning import OverlayEntry
from paceline_operator.render import hash as template_hash
from paceline_operator.resources import objects, overlay

TEMPLATE_VERSION = 1
"""Raised when the same spec and inputs give another template; the old renderer stays."""

POD_DEFAULT_KEYS = (
    "annotations",
    "cache",
    "env",
    "imagePullPolicy",
    "imagePullSecrets",
    "labels",
    "nodeSelector",
    "podSecurityContext",
    "priorityClassName",
    "resources",
    "runtimeClassName",
    "schedulerName",
    "tolerations",
    "volumeMounts",
    "volumes",
)
"""Keys of the chart value `engine.podDefaults`, as in a pod, its container or `spec.model`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedInputs:
    """Resolved inputs outside spec.

    Attributes:
        image: of the engine where spec names none.
        pod_defaults: the chart's, known keys alone.
        boot: camelCase name of a boot maximum -> value in force; what the engine derives from its
            device is absent.
        overlay: entries of the tuner that need new pods.
    """

    template_version: int = TEMPLATE_VERSION
    image: str
    pod_defaults: Mapping[str, Any] = field(default_factory=dict)
    boot: Mapping[str, int] = field(default_factory=dict)
    overlay: tuple[OverlayEntry, ...] = ()

    def encode(self) -> str:
        """The annotation's text."""
        return template_hash.canonical_json(
            {
                "templateVersion": self.template_version,
                "image": self.image,
                "podDefaults": self.pod_defaults,
                "boot": self.boot,
                "overlay": [
                    item.model_dump(mode="json", by_alias=True, exclude_none=True)
                    for item in self.overlay
                ],
            }
        )


def decode(annotation: str) -> PinnedInputs | None:
    """Read an annotation back; None if this operator cannot render what it says."""
    try:
        read = json.loads(annotation)
    except (ValueError, RecursionError):
        return None
    if objects.whole(read, "templateVersion") != TEMPLATE_VERSION:
        return None
    try:
        entries = tuple(
            OverlayEntry.model_validate_json(json.dumps(item))
            for item in objects.items(read, "overlay")
        )
    except ValidationError:
        return None
    boot = objects.mapping(read, "boot")
    return PinnedInputs(
        image=objects.text(read, "image"),
        pod_defaults=objects.mapping(read, "podDefaults"),
        boot={name: objects.whole(boot, name) for name in boot},
        overlay=entries,
    )


def version_of(annotation: str) -> int:
    """Version of the renderer that made a template, 0 if the annotation does not say."""
    try:
        return objects.whole(json.loads(annotation), "templateVersion")
    except (ValueError, RecursionError):
        return 0


def resolve(
    spec: LLMDeploymentSpec,
    base: Resolved,
    kept: tuple[OverlayEntry, ...],
    *,
    engine_image: str,
    vllm_image: str,
    pod_defaults: Mapping[str, Any],
) -> PinnedInputs:
    """Inputs of a template that is new: the chart's present values, boot maxima computed now."""
    booted = base.settings.booted()
    derived = decided_by_engine(spec, base)
    boot = {
        border_name(knob.boot_maximum): getattr(booted, knob.boot_maximum)
        for knob in knobs().values()
        if knob.boot_maximum and knob.boot_maximum not in derived
    }
    known = {key: pod_defaults[key] for key in POD_DEFAULT_KEYS if pod_defaults.get(key)}
    return PinnedInputs(
        image=vllm_image if spec.runtime is Runtime.VLLM else engine_image,
        pod_defaults=known,
        boot=boot,
        overlay=needing_pods(kept, spec.runtime),
    )


def with_overlay(
    pinned: PinnedInputs, kept: tuple[OverlayEntry, ...], runtime: Runtime | None
) -> PinnedInputs:
    """The same inputs with the tuner's present restart-class entries: the pin does not move."""
    return replace(pinned, overlay=needing_pods(kept, runtime))


def needing_pods(
    entries: tuple[OverlayEntry, ...], runtime: Runtime | None
) -> tuple[OverlayEntry, ...]:
    """Entries that a running engine cannot take; vLLM can take none."""
    of = None if runtime is Runtime.VLLM else ChangeClass.RESTART
    return tuple(item for item in entries if item.name in border_names(of))


def decided_by_engine(spec: LLMDeploymentSpec, base: Resolved) -> frozenset[str]:
    """Settings (snake_case) that only the engine knows: nobody set them and a GPU decides.

    A pod without a GPU starts with the values that `device_values(None)` gives, which are the
    declared defaults.
    """
    if spec.runtime is Runtime.VLLM or not (spec.resources and spec.resources.gpus):
        return frozenset()
    given = base.settings.model_fields_set
    found = set()
    for name in device_values(None):
        boot = knobs()[name].boot_maximum
        if name not in given:
            found.add(name)
            if boot not in given:
                found.add(boot)
    return frozenset(found)


def settings_under(base: Resolved, pinned: PinnedInputs) -> EngineSettings | None:
    """Settings of a template under a pin; None if a value in spec lies above a pinned maximum.

    A boot maximum in spec wins over the pinned one.
    """
    given = {name: getattr(base.settings, name) for name in base.settings.model_fields_set}
    for name in (knob.boot_maximum for knob in knobs().values() if knob.boot_maximum):
        if base.sources[name] is not Source.SPEC:
            given.pop(name, None)
            if border_name(name) in pinned.boot:
                given[name] = pinned.boot[border_name(name)]
    for item in pinned.overlay:
        name = border_names().get(item.name, "")
        if name and (value := overlay.value_of(name, item.value)) is not None:
            given[name] = value
    try:
        return EngineSettings(**given)
    except ValidationError:
        return None


def boot_values(settings: EngineSettings) -> dict[str, Any]:
    """Settings (snake_case) of a template that need new pods, as `status.effective` shows them."""
    return {
        name: getattr(settings, name)
        for name, knob in knobs().items()
        if knob.change is not ChangeClass.LIVE
    }


def boot_in(annotation: str) -> Mapping[str, int]:
    """Boot maxima (camelCase) that an annotation of any version names."""
    try:
        boot = objects.mapping(json.loads(annotation), "boot")
    except (ValueError, RecursionError):
        return {}
    return {name: value for name, value in boot.items() if isinstance(value, int)}

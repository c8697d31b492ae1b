"""An LLMDeployment as the API server returns it -> the model and the settings it means."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

from paceline_crds import llmdeployment, resolve, support
from paceline_crds.errors import InvalidManifest, InvalidSettings
from paceline_crds.llmdeployment import LLMDeployment
from paceline_crds.objective import Resolved
from paceline_crds.spec import LLMDeploymentSpec
from paceline_operator.resources import overlay
from paceline_operator.resources.overlay import Wanted

INSTANCE_LABEL = "paceline.dev/operator"
DEFAULT_INSTANCE = "default"
REMEMBERED = 1024
"""Deployments for which is kept what follows from spec alone: it is asked for at each look."""
_READ_BACK = ("wantedHash", "tuning")
"""What the operator reads of status through the model."""


class ConfigReason(StrEnum):
    """Reasons of the condition ConfigValid when it is False."""

    INVALID = "InvalidSpec"
    NOT_SUPPORTED = "NotSupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which object this is.

    Attributes:
        instance: name of the install that takes it.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A deployment that can be served as it is.

    Attributes:
        spec_text: equal where spec is: what follows from spec alone is worked out once for a text.
    """

    identity: Identity
    deployment: LLMDeployment
    spec_text: str
    base: Resolved
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class _Written:
    """A spec; equal to another if its text is."""

    text: str
    spec: LLMDeploymentSpec = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A deployment that cannot: serving goes on with its last good template."""

    identity: Identity
    reason: ConfigReason
    message: str


def parse(document: Mapping[str, Any]) -> Parsed | Refused:
    """Read an object from the API. Fields of a newer schema are ignored, not refused.

    A status that cannot be read is a lost one: it never makes a spec wrong.
    """
    identity = identify(document)
    try:
        deployment = _read(document)
        written = _Written(json.dumps(document["spec"], sort_keys=True), deployment.spec)
        base, problems = _resolved(written)
    except (InvalidManifest, InvalidSettings) as error:
        return Refused(identity=identity, reason=ConfigReason.INVALID, message=str(error))
    if problems:
        message = "\n".join(problems)
        return Refused(identity=identity, reason=ConfigReason.NOT_SUPPORTED, message=message)
    tuning = deployment.status.tuning if deployment.status else None
    entries = (tuning.overlay if tuning else None) or ()
    wanted = overlay.lay_over(base, entries, deployment.spec)
    return Parsed(
        identity=identity,
        deployment=deployment,
        spec_text=written.text,
        base=base,
        wanted=wanted,
    )


@lru_cache(maxsize=REMEMBERED)
def _resolved(written: _Written) -> tuple[Resolved, tuple[str, ...]]:
    """The settings of a spec, and what of it no release builds yet."""
    base = resolve.resolve(written.spec)
    return base, tuple(support.not_supported(written.spec, base.settings))


def _read(document: Mapping[str, Any]) -> LLMDeployment:
    """The model, without what is most of an object's text and nobody asks the model for."""
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    without = {key: value for key, value in document.items() if key != "status"}
    without["metadata"] = metadata
    status = document.get("status")
    if not isinstance(status, Mapping):
        return llmdeployment.parse(without, strict=False)
    read_back = {key: status[key] for key in _READ_BACK if key in status}
    try:
        return llmdeployment.parse({**without, "status": read_back}, strict=False)
    except InvalidManifest:
        return llmdeployment.parse(without, strict=False)


def identify(document: Mapping[str, Any]) -> Identity:
    """Which object this is; metadata as the server fills it in."""
    metadata = document["metadata"]
    labels = metadata.get("labels") or {}
    return Identity(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        instance=labels.get(INSTANCE_LABEL, DEFAULT_INSTANCE),
    )

"""An LLMDeployment as the API server returns it -> the model and the settings it means."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from paceline_crds import llmdeployment, resolve, support
from paceline_crds.errors import InvalidManifest, InvalidSettings
from paceline_crds.llmdeployment import LLMDeployment
from paceline_crds.objective import Resolved
from paceline_operator.resources import overlay
from paceline_operator.resources.overlay import Wanted

INSTANCE_LABEL = "paceline.dev/operator"
DEFAULT_INSTANCE = "default"


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
    """A deployment that can be served as it is."""

    identity: Identity
    deployment: LLMDeployment
    base: Resolved
    wanted: Wanted


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
        base = resolve.resolve(deployment.spec)
    except (InvalidManifest, InvalidSettings) as error:
        return Refused(identity=identity, reason=ConfigReason.INVALID, message=str(error))
    if problems := support.not_supported(deployment.spec, base.settings):
        message = "\n".join(problems)
        return Refused(identity=identity, reason=ConfigReason.NOT_SUPPORTED, message=message)
    tuning = deployment.status.tuning if deployment.status else None
    entries = (tuning.overlay if tuning else None) or ()
    wanted = overlay.lay_over(base, entries, deployment.spec)
    return Parsed(identity=identity, deployment=deployment, base=base, wanted=wanted)


def _read(document: Mapping[str, Any]) -> LLMDeployment:
    try:
        return llmdeployment.parse(dict(document), strict=False)
    except InvalidManifest:
        without = {key: value for key, value in document.items() if key != "status"}
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

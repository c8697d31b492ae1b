"""Why a pod does not serve: from its status, the cluster's warnings and the engine's own words."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from paceline_crds.phases import StartupPhase
from paceline_crds.spec_pods import GPU_RESOURCE
from paceline_operator.decide.actions import DrainPod, PatchSettings
from paceline_operator.decide.observed import EngineReading, Object, PodEvent, WriteFailure
from paceline_operator.resources import objects


class FailureReason(StrEnum):
    """Constants that conditions and events carry."""

    OUT_OF_MEMORY = "OutOfMemory"
    KV_CACHE_TOO_SMALL = "KVCacheTooSmall"
    DOWNLOAD_FAILED = "DownloadFailed"
    AUTH_FAILED = "AuthFailed"
    UNSUPPORTED_MODEL = "UnsupportedModel"
    INVALID_SETTINGS = "InvalidSettings"
    DEVICE_BROKEN = "DeviceBroken"
    ENGINE_CRASHED = "EngineCrashed"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    SECRET_MISSING = "SecretMissing"  # noqa: S105 - a reason
    MOUNT_FAILED = "MountFailed"
    CONTAINER_FAILED = "ContainerFailed"
    INSUFFICIENT_GPU = "InsufficientGPU"
    UNSCHEDULABLE = "Unschedulable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    PODS_REFUSED = "PodsRefused"
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    CHILD_CONFLICT = "ChildConflict"
    WRITE_REFUSED = "WriteRefused"
    ENGINE_REFUSED = "EngineRefused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why something does not work."""

    reason: FailureReason
    message: str

    @property
    def is_placement(self) -> bool:
        """Whether the cluster found no place for the pod: nothing is wrong with the pod itself."""
        return self.reason in {FailureReason.INSUFFICIENT_GPU, FailureReason.UNSCHEDULABLE}


OWN_WORDS = re.compile(
    r"(?:the engine did not start|the engine ended|cannot start): (?:([A-Z][A-Za-z]+): )?(.+)"
)
"""How the engine's log ends when it gives up (`serve.lifecycle`)."""

_FOREIGN_WORDS: tuple[tuple[re.Pattern[str], FailureReason], ...] = (
    (
        re.compile(r"No available memory for the cache blocks|stored in KV cache", re.IGNORECASE),
        FailureReason.KV_CACHE_TOO_SMALL,
    ),
    (
        re.compile(r"out of memory|OutOfMemoryError|Free memory on device"),
        FailureReason.OUT_OF_MEMORY,
    ),
    (
        re.compile(
            r"GatedRepoError|401 Client Error|403 Client Error|Access to model .* restricted"
        ),
        FailureReason.AUTH_FAILED,
    ),
    (
        re.compile(r"are not supported for now|Unsupported|architectures? .* not supported"),
        FailureReason.UNSUPPORTED_MODEL,
    ),
    (
        re.compile(
            r"RepositoryNotFound|is not a local folder|MaxRetryError|LocalEntryNotFound|"
            r"does not appear to have a file named"
        ),
        FailureReason.DOWNLOAD_FAILED,
    ),
)
_NO_SECRET = re.compile(
    r'(secrets?|configmaps?) "([^"]+)" not found|couldn\'t find key (\S+)', re.IGNORECASE
)
_IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
_TO_ENGINES = frozenset({PatchSettings.__name__, DrainPod.__name__})
_MAX_MESSAGE = 1024


def of_pod(
    pod: Object,
    reading: EngineReading | None,
    events: Iterable[PodEvent],
    *,
    gpu_resource: str = GPU_RESOURCE,
) -> Failure | None:
    """Why this pod does not serve, None if nothing speaks against it (it may still be loading)."""
    if objects.condition(pod, "Ready").get("status") == "True":
        return None
    return (
        _placement(pod, gpu_resource) or _container(pod) or _said(reading) or _mounts(pod, events)
    )


def of_deployment(deployment: Object) -> Failure | None:
    """Why the cluster refuses to make a Deployment's pods."""
    found = objects.condition(deployment, "ReplicaFailure")
    if found.get("status") != "True":
        return None
    return Failure(reason=_refusal(objects.text(found, "message")), message=_text(found, "message"))


def of_write(failure: WriteFailure) -> Failure:
    """Why the API server, or an engine, refused a write."""
    reason = _refusal(failure.message)
    if failure.action in _TO_ENGINES:
        reason = FailureReason.ENGINE_REFUSED
    elif failure.code == 409 and reason is FailureReason.PODS_REFUSED:
        reason = FailureReason.CHILD_CONFLICT
    elif reason is FailureReason.PODS_REFUSED:
        reason = FailureReason.WRITE_REFUSED
    return Failure(
        reason=reason,
        message=_cut(f"{failure.action} of {failure.target} was refused: {failure.message}"),
    )


def _refusal(message: str) -> FailureReason:
    if "exceeded quota" in message:
        return FailureReason.QUOTA_EXCEEDED
    if "being terminated" in message:
        return FailureReason.NAMESPACE_TERMINATING
    return FailureReason.PODS_REFUSED


def _placement(pod: Object, gpu_resource: str) -> Failure | None:
    scheduled = objects.condition(pod, "PodScheduled")
    if scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable":
        return None
    message = _text(scheduled, "message")
    is_gpu = f"Insufficient {gpu_resource}" in message
    reason = FailureReason.INSUFFICIENT_GPU if is_gpu else FailureReason.UNSCHEDULABLE
    return Failure(reason=reason, message=message)


def _container(pod: Object) -> Failure | None:
    for status in objects.items(pod, "status", "containerStatuses"):
        waiting = objects.mapping(status, "state", "waiting")
        why, message = objects.text(waiting, "reason"), _text(waiting, "message")
        if why in _IMAGE_REASONS:
            return Failure(reason=FailureReason.IMAGE_PULL_FAILED, message=message or why)
        if why == "CreateContainerConfigError":
            reason = (
                FailureReason.SECRET_MISSING
                if _NO_SECRET.search(message)
                else FailureReason.CONTAINER_FAILED
            )
            return Failure(reason=reason, message=message)
        if why in {"CreateContainerError", "RunContainerError"}:
            return Failure(reason=FailureReason.CONTAINER_FAILED, message=message or why)
        ended = objects.mapping(status, "state", "terminated") or objects.mapping(
            status, "lastState", "terminated"
        )
        if ended and objects.whole(ended, "exitCode") != 0:
            return _ended(ended)
    return None


def _ended(ended: Object) -> Failure:
    words, code = objects.text(ended, "message"), objects.whole(ended, "exitCode")
    if objects.text(ended, "reason") == "OOMKilled":
        return Failure(
            reason=FailureReason.OUT_OF_MEMORY,
            message="the container used more memory than resources.limits.memory allows and was "
            "killed; raise the limit or lower maxModelLen and the boot maxima",
        )
    own = list(OWN_WORDS.finditer(words))
    if own:
        reason, message = own[-1][1] or "", own[-1][2]
        known = next((item for item in FailureReason if item == reason), None)
        if known is None and code == 2:
            known = FailureReason.INVALID_SETTINGS
        return Failure(
            reason=known or FailureReason.ENGINE_CRASHED,
            message=_cut(message if known or not reason else f"{reason}: {message}"),
        )
    for pattern, reason_found in _FOREIGN_WORDS:
        if found := pattern.search(words):
            return Failure(reason=reason_found, message=_cut(_line_around(words, found.start())))
    last = words.strip().splitlines()[-1:] or ["its log is empty"]
    return Failure(
        reason=FailureReason.ENGINE_CRASHED,
        message=_cut(f"the engine ended with exit code {code}: {last[0].strip()}"),
    )


def _said(reading: EngineReading | None) -> Failure | None:
    if reading is None or not reading.is_reachable or reading.phase != StartupPhase.FAILED:
        return None
    known = next((item for item in FailureReason if item == reading.reason), None)
    return Failure(reason=known or FailureReason.ENGINE_CRASHED, message=_cut(reading.message))


def _mounts(pod: Object, events: Iterable[PodEvent]) -> Failure | None:
    mine = [event for event in events if event.pod_uid == objects.uid(pod)]
    for event in sorted(mine, key=lambda item: -item.last_seen):
        if event.reason not in {"FailedMount", "FailedAttachVolume"}:
            continue
        missing = _NO_SECRET.search(event.message)
        reason = FailureReason.SECRET_MISSING if missing else FailureReason.MOUNT_FAILED
        return Failure(reason=reason, message=_cut(event.message))
    return None


def _line_around(words: str, position: int) -> str:
    start = words.rfind("\n", 0, position) + 1
    return words[start:].partition("\n")[0].strip()


def _text(value: Object, key: str) -> str:
    return _cut(objects.text(value, key))


def _cut(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 3] + "..."

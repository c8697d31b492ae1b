"""Why a pod does not serve is told in the engine's own words."""

from typing import Any, get_args

import pytest

from paceline_crds.phases import StartFailure
from paceline_operator.decide import failures
from paceline_operator.decide.observed import EngineReading, PodEvent, WriteFailure


def pod(*, status: dict[str, Any] | None = None, conditions: Any = ()) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "uid": "u"},
        "status": {"conditions": list(conditions), "containerStatuses": [status or {}]},
    }


def ended(message: str, code: int = 3, reason: str = "Error") -> dict[str, Any]:
    last = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": last}


LOG = "2026-01-01 00:00:00 ERROR paceline_engine.serve.lifecycle: "
VLLM_MEMORY = "ValueError: No available memory for the cache blocks. Try increasing"


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        (LOG + "the engine did not start: OutOfMemory: 9 GB wanted", 3, "OutOfMemory"),
        (LOG + "the engine did not start: KVCacheTooSmall: x", 3, "KVCacheTooSmall"),
        (LOG + "the engine did not start: DownloadFailed: x", 3, "DownloadFailed"),
        (LOG + "the engine did not start: AuthFailed: x", 3, "AuthFailed"),
        (LOG + "the engine did not start: UnsupportedModel: x", 3, "UnsupportedModel"),
        (LOG + "the engine ended: DeviceBroken: x", 1, "DeviceBroken"),
        (LOG + "cannot start: port 8000 is taken", 2, "InvalidSettings"),
        (LOG + "the engine ended: Internal: KeyError", 1, "EngineCrashed"),
        ("Segmentation fault", 139, "EngineCrashed"),
        ("", 1, "EngineCrashed"),
        (VLLM_MEMORY, 1, "KVCacheTooSmall"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", 1, "OutOfMemory"),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", 1, "AuthFailed"),
    ],
)
def test_an_ended_engine_is_classified(message: str, code: int, reason: str) -> None:
    found = failures.of_pod(pod(status=ended(message, code)), None, ())
    assert found is not None
    assert found.reason == reason


def test_every_reason_of_an_engine_is_a_reason_of_a_condition() -> None:
    assert set(get_args(StartFailure)) <= set(failures.FailureReason)


def test_the_engines_own_sentence_is_kept() -> None:
    words = LOG + "loading\n" + LOG + "the engine did not start: AuthFailed: the hub refused hf://a"
    found = failures.of_pod(pod(status=ended(words)), None, ())
    assert found is not None
    assert found.message == "the hub refused hf://a"


def test_a_killed_container_is_out_of_memory() -> None:
    found = failures.of_pod(pod(status=ended("", 137, "OOMKilled")), None, ())
    assert found is not None
    assert found.reason == "OutOfMemory"
    assert "resources.limits.memory" in found.message


def test_a_start_that_failed_is_told_before_the_container_ends() -> None:
    reading = EngineReading(
        pod_uid="u",
        read_at=0.0,
        is_reachable=True,
        phase="Failed",
        reason="KVCacheTooSmall",
        message="2 blocks",
    )
    found = failures.of_pod(pod(), reading, ())
    assert found is not None
    assert (found.reason, found.message) == ("KVCacheTooSmall", "2 blocks")


@pytest.mark.parametrize(
    ("why", "message", "reason"),
    [
        ("ImagePullBackOff", "Back-off pulling image", "ImagePullFailed"),
        ("CreateContainerConfigError", 'secret "keys" not found', "SecretMissing"),
        ("CreateContainerConfigError", "couldn't find key token in Secret a/b", "SecretMissing"),
        ("CreateContainerError", "no command", "ContainerFailed"),
    ],
)
def test_a_container_that_cannot_be_made_is_classified(why: str, message: str, reason: str) -> None:
    status = {"state": {"waiting": {"reason": why, "message": message}}}
    found = failures.of_pod(pod(status=status), None, ())
    assert found is not None
    assert found.reason == reason


def test_a_secret_that_a_mount_waits_for_is_told_from_the_clusters_warning() -> None:
    warning = PodEvent(
        pod_uid="u",
        reason="FailedMount",
        message='MountVolume.SetUp failed: secret "keys" not found',
        last_seen=1.0,
    )
    found = failures.of_pod(pod(), None, [warning])
    assert found is not None
    assert found.reason == "SecretMissing"


def test_lack_of_a_device_is_told_from_lack_of_room() -> None:
    def unschedulable(message: str) -> dict[str, Any]:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        return pod(conditions=[condition | {"message": message}])

    gpu = failures.of_pod(unschedulable("1 Insufficient nvidia.com/gpu."), None, ())
    cpu = failures.of_pod(unschedulable("1 Insufficient cpu."), None, ())
    other = failures.of_pod(
        unschedulable("1 Insufficient amd.com/gpu."), None, (), gpu_resource="amd.com/gpu"
    )
    assert [item.reason if item else None for item in (gpu, cpu, other)] == [
        "InsufficientGPU",
        "Unschedulable",
        "InsufficientGPU",
    ]


def test_a_ready_pod_has_no_failure_whatever_it_went_through() -> None:
    ready = {"type": "Ready", "status": "True"}
    assert failures.of_pod(pod(status=ended("x"), conditions=[ready]), None, ()) is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('pods "a" is forbidden: exceeded quota: small', "QuotaExceeded"),
        ("violates PodSecurity restricted", "PodsRefused"),
        ("unable to create in namespace a because it is being terminated", "NamespaceTerminating"),
    ],
)
def test_a_refusal_of_pods_is_classified(message: str, reason: str) -> None:
    condition = {"type": "ReplicaFailure", "status": "True", "message": message}
    found = failures.of_deployment({"status": {"conditions": [condition]}})
    assert found is not None
    assert found.reason == reason


@pytest.mark.parametrize("code", [400, 409, 412])
def test_what_an_engine_refuses_is_no_conflict_over_a_child(code: int) -> None:
    words = "maxNumSeqs needs a restart"
    failure = WriteFailure(
        action="PatchSettings", target="Pod/a", code=code, reason="", message=words
    )
    found = failures.of_write(failure)
    assert found.reason == "EngineRefused"
    assert found.message == f"PatchSettings of Pod/a was refused: {words}"


def test_a_refused_write_names_its_target() -> None:
    failure = WriteFailure(
        action="Apply", target="Service/a", code=403, reason="Forbidden", message="no right"
    )
    found = failures.of_write(failure)
    assert found.reason == "WriteRefused"
    assert "Service/a" in found.message

"""What shapes the pods: resources, environment, roll-outs, draining, the pod template's subset."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from paceline_crds.fields import (
    KeyRef,
    Labels,
    LabelValue,
    ObjectName,
    Quantity,
    UpToADay,
)
from paceline_crds.group import Group
from paceline_crds.rules import ListType, Rule

ResourceName = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9._/]*[a-zA-Z0-9])?$"
    ),
]
QuantityMap = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=253)], Quantity],
    Field(max_length=16),
]
GPU_RESOURCE = "nvidia.com/gpu"


def _names_no_gpu(resources: "Resources") -> bool:
    gpu = resources.gpu_resource or GPU_RESOURCE
    return gpu not in (resources.limits or {}) and gpu not in (resources.requests or {})


class Resources(Group):
    """What each pod asks of its node."""

    gpus: Annotated[int, Field(ge=0, le=64)] | None = None
    """Devices per pod; 0 is the CPU. Default: 0."""
    gpu_resource: ResourceName | None = None
    """Name of the device resource. Default: nvidia.com/gpu."""
    requests: QuantityMap | None = None
    """Requests of CPU, memory and others."""
    limits: QuantityMap | None = None
    """Limits of CPU, memory and others."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!((has(self.limits) && (has(self.gpuResource) ? self.gpuResource : "
            f"'{GPU_RESOURCE}') in self.limits) || (has(self.requests) && "
            f"(has(self.gpuResource) ? self.gpuResource : '{GPU_RESOURCE}') in self.requests))",
            "devices are counted in resources.gpus; set it and remove the device resource from "
            "requests and limits",
            _names_no_gpu,
        ),
    )


class EnvSource(Group):
    """Where a variable's value comes from."""

    secret_key_ref: KeyRef | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.secretKeyRef) != has(self.configMapKeyRef)",
            "valueFrom needs exactly one of secretKeyRef and configMapKeyRef; give one",
            lambda source: (source.secret_key_ref is None) != (source.config_map_key_ref is None),
        ),
    )


class EnvVar(Group):
    """An environment variable of the engine's container."""

    name: Annotated[
        str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    ]
    """Name of the variable."""
    value: Annotated[str, StringConstraints(max_length=8192)] | None = None
    """Its value."""
    value_from: EnvSource | None = None
    """Or where its value comes from."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.value) != has(self.valueFrom)",
            "a variable needs exactly one of value and valueFrom; give one",
            lambda variable: (variable.value is None) != (variable.value_from is None),
        ),
    )


class RolloutStrategy(StrEnum):
    """Which pods go first."""

    AUTO = "Auto"
    SURGE = "Surge"
    IN_PLACE = "InPlace"


class Rollout(Group):
    """How pods are replaced."""

    strategy: RolloutStrategy | None = None
    """Surge starts the new pod first, InPlace ends the old one first. Default: Auto."""
    wait_for_idle: bool | None = None
    """Wait until a pod has no request before it is drained. Default: true."""
    idle_timeout: UpToADay | None = None
    """Longest wait for idle. Default: 5m."""
    progress_deadline: UpToADay | None = None
    """Time without progress after which Progressing is False. Default: 30m."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.idleTimeout) || !has(self.waitForIdle) || self.waitForIdle",
            "rollout.idleTimeout needs rollout.waitForIdle; remove idleTimeout or set "
            "waitForIdle: true",
            lambda rollout: rollout.idle_timeout is None or rollout.wait_for_idle is not False,
        ),
    )


class Drain(Group):
    """How a pod ends: first it leaves the endpoints, then it finishes what runs."""

    pre_stop_seconds: Annotated[int, Field(ge=0, le=600)] | None = None
    """Seconds in which requests are still accepted while routers look away. Default: 10."""
    shutdown_timeout_seconds: Annotated[int, Field(ge=0, le=86_400)] | None = None
    """Most seconds that running requests get to finish. Default: 120."""


class TolerationOperator(StrEnum):
    """How a toleration compares."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """Effect of the taint that is tolerated."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Group):
    """A taint that the pods tolerate."""

    key: Annotated[str, StringConstraints(max_length=317)] | None = None
    """The taint's key; absent with operator Exists means every taint."""
    operator: TolerationOperator | None = None
    """Exists or Equal. Default: Equal."""
    value: LabelValue | None = None
    """The taint's value, for operator Equal."""
    effect: TaintEffect | None = None
    """The taint's effect; absent means every effect."""
    toleration_seconds: Annotated[int, Field(ge=0, le=604_800)] | None = None
    """Seconds that a NoExecute taint is tolerated."""


class ImagePullSecret(Group):
    """A Secret with registry credentials."""

    name: ObjectName
    """Name of the Secret in the same namespace."""


class PodTemplate(Group):
    """The part of the pod template that users own."""

    labels: Labels | None = None
    """Labels added to the pods; ours win."""
    annotations: (
        Annotated[
            dict[
                Annotated[str, StringConstraints(min_length=1, max_length=317)],
                Annotated[str, StringConstraints(max_length=4096)],
            ],
            Field(max_length=32),
        ]
        | None
    ) = None
    """Annotations added to the pods; ours win."""
    node_selector: Labels | None = None
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=32), ListType(atomic=True)] | None = (
        None
    )
    """Taints that the pods tolerate."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods."""
    scheduler_name: ObjectName | None = None
    """Scheduler of the pods."""
    image_pull_secrets: (
        Annotated[list[ImagePullSecret], Field(max_length=8), ListType(("name",))] | None
    ) = None
    """Secrets with registry credentials."""

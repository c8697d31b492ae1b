"""`LLMDeployment.status`: what the operator reports. Only the operator writes it."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from paceline_crds.fields import Count, ItemName, LongText, Text, Timestamp
from paceline_crds.group import Group
from paceline_crds.rules import ListType
from paceline_crds.source import Source
from paceline_crds.status_tuning import TuningStatus

Reason = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
    ),
]


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(StrEnum):
    """The conditions; the last two (kstatus) are present only while true."""

    READY = "Ready"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    CONFIG_VALID = "ConfigValid"
    MODEL_CACHED = "ModelCached"
    METRICS_AVAILABLE = "MetricsAvailable"
    SLO_MET = "SLOMet"
    TUNING_ACTIVE = "TuningActive"
    DEGRADED = "Degraded"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class Condition(Group):
    """One condition."""

    type: Annotated[
        str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9]*$")
    ]
    """Name of the condition."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Reason
    """A constant that programs can compare."""
    message: LongText | None = None
    """The same for people."""
    last_transition_time: Timestamp
    """When the status last changed."""
    observed_generation: Count | None = None
    """Generation of spec that the condition speaks of."""


class EffectiveSetting(Group):
    """A setting in force."""

    name: ItemName
    """Name of the setting."""
    value: Annotated[str, StringConstraints(max_length=128)]
    """Its value as text."""
    source: Source
    """Who gave it."""
    since: Timestamp | None = None
    """When it came into force."""


class SettingsRevision(Group):
    """Revision of the wanted settings; it only grows."""

    wanted: Count | None = None
    """Revision that is wanted."""
    applied: Count | None = None
    """Revision that all counted pods have read back."""


class Capacity(Group):
    """What one pod can hold."""

    kv_blocks: Count | None = None
    """Blocks of the KV cache."""
    kv_tokens: Count | None = None
    """Tokens that the KV cache holds."""
    max_concurrency: Count | None = None
    """Requests of the greatest length that fit at the same time."""


class LLMDeploymentStatus(Group):
    """What is there, as the operator saw it last."""

    observed_generation: Count | None = None
    """Generation of spec that status speaks of."""
    replicas: Count | None = None
    """Pods that a scaler should see."""
    ready_replicas: Count | None = None
    """Pods that are ready."""
    updated_replicas: Count | None = None
    """Pods of the wanted template."""
    available_replicas: Count | None = None
    """Pods that can serve."""
    selector: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Label selector of the pods, as text, for scalers."""
    endpoint: Text | None = None
    """Address of the OpenAI endpoint within the cluster."""
    image: Text | None = None
    """Image of the engine in force."""
    wanted_hash: Annotated[str, StringConstraints(max_length=64)] | None = None
    """Hash of the wanted pod template."""
    template_version: Count | None = None
    """Version of the renderer that the pods are pinned to."""
    settings_revision: SettingsRevision | None = None
    """Revision of the wanted settings."""
    # Atomic: only the operator writes it, whole. By name the server kept an owner of each field of
    # each entry in managedFields, as many bytes as the entries themselves, in every version.
    effective: (
        Annotated[list[EffectiveSetting], Field(max_length=128), ListType(atomic=True)] | None
    ) = None
    """Each setting in force and who gave it."""
    capacity: Capacity | None = None
    """What one pod can hold."""
    memory_plan: (
        Annotated[
            dict[Annotated[str, StringConstraints(min_length=1, max_length=63)], Count],
            Field(max_length=32),
        ]
        | None
    ) = None
    """Bytes of a pod's device memory by use."""
    tuning: TuningStatus | None = None
    """What the tuner sees and does."""
    conditions: Annotated[list[Condition], Field(max_length=32), ListType(("type",))] | None = None
    """Conditions by type."""

"""Everything that a decision may look at, gathered by the shell before it asks for a plan.

Objects of the API are plain dicts, as JSON has them. Times are seconds since the epoch, like `now`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_crds.phases import DrainPhase
from paceline_operator.decide.reasons import Reason
from paceline_operator.decide.tuning.signals import Sample
from paceline_operator.resources import objects

Object = objects.Object

CHILD_KINDS = (
    "Deployment",
    "ConfigMap",
    "Service",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "PodMonitor",
    "InferencePool",
)
"""Kinds of children, as keys of `Observed.children`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """What the admin port of one pod said, or why it said nothing.

    For runtime VLLM the shell asks `/v1/models` (or nobody, where an API key is set) and leaves
    what that cannot tell as it is here.

    Attributes:
        pod_uid: the pod that answered; a reading of another uid is not used.
        read_at: when.
        is_reachable: an answer came; everything below it is meaningless otherwise, but `message`.
        is_ready, is_live, reason, message: `GET /v1/paceline/status`; message is also why the port
            could not be reached.
        model: served name, as the engine says it.
        phase, progress: of the start; a StartupPhase, unless the engine is of another release.
        drain_phase: a DrainPhase, likewise.
        revision, generation: of the settings; None until they are known.
        settings: camelCase name -> JSON value, `GET /v1/paceline/settings`; empty until known.
        num_requests: requests in the engine (`GET /v1/paceline/requests`), None if not asked.
        capacity: kvBlocks, kvTokens, maxModelLen.
        memory_plan: use -> bytes; kernels: operation -> implementation.
    """

    pod_uid: str
    read_at: float
    is_reachable: bool
    is_ready: bool = False
    is_live: bool = False
    reason: str = ""
    message: str = ""
    model: str = ""
    phase: str = ""
    progress: float = 0.0
    drain_phase: str = DrainPhase.SERVING
    revision: int | None = None
    generation: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    num_requests: int | None = None
    capacity: Mapping[str, int] = field(default_factory=dict)
    memory_plan: Mapping[str, int] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What comes from the chart and may change with an upgrade; pinned by each Deployment.

    Attributes:
        engine_image: image of runtime Paceline where spec names none.
        vllm_image: the same for runtime VLLM.
        pod_defaults: chart value `engine.podDefaults`, whose keys are
            `render.inputs.POD_DEFAULT_KEYS`.
    """

    engine_image: str
    vllm_image: str = ""
    pod_defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How this operator runs.

    Attributes:
        instance: name of the install; it takes the LLMDeployments whose label says so.
        field_manager: of every server-side apply, and so of the managedFields that are ours.
        operator_namespace, operator_labels: the operator's own pods, which the NetworkPolicy lets
            in at the admin port; without labels every pod of that namespace; without a namespace
            nobody (an operator on a laptop comes by port-forward, which no policy stops).
        known_kinds: kinds with a CustomResourceDefinition in this cluster (PodMonitor,
            InferencePool).
        is_tuning_frozen: no tuner's change anywhere; those in flight are taken back.
        max_changing: deployments that may have a tuner's change in flight at the same time.
        schema_version: of the LLMDeployments that this cluster serves; None if it does not tell.
    """

    instance: str = "default"
    field_manager: str = "paceline-operator"
    operator_namespace: str = ""
    operator_labels: Mapping[str, str] = field(default_factory=dict)
    known_kinds: frozenset[str] = frozenset()
    is_tuning_frozen: bool = False
    max_changing: int = 5
    schema_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailure:
    """The last try to carry out an action that the API server or an engine refused.

    Attributes:
        action: the action's class name, such as Apply.
        target: `Kind/name`.
        code: HTTP status, 0 if none came.
        reason: Status.reason, such as Forbidden, Conflict, Invalid.
        message: the server's words.
        times: tries in a row that ended like this.
    """

    action: str
    target: str
    code: int
    reason: str
    message: str
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """A warning that the cluster wrote about a pod, such as FailedMount: not all is in status."""

    pod_uid: str
    reason: str
    message: str
    last_seen: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What Prometheus said.

    Attributes:
        samples: windows that were due, oldest first.
        lack: reason why nothing was asked or answered (of MetricsAvailable), empty if all is well.
        text: the same for people.
    """

    samples: tuple[Sample, ...] = ()
    lack: str = Reason.NOT_CONFIGURED
    text: str = "no Prometheus is configured: chart value prometheus.url"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One LLMDeployment and all that belongs to it.

    Attributes:
        deployment: the LLMDeployment; never older than the operator's own last write of it.
        children: kind -> every object of that kind in the namespace whose label
            `paceline.dev/deployment` is the deployment's name, whoever owns it.
        pods: pods with that label.
        readings: pod name -> what its admin port said; absent if it was not asked.
        admin_token_digests: SHA-256 of the accepted admin tokens, hex, newest first, two at most.
        failures: writes that were refused last time and have not succeeded since.
        rewrites: `Kind/name` -> how often in the last ten minutes the same content had to be
            written again because somebody else had changed it.
        events: warnings about the pods.
        measured: the windows that were due.
        num_changing: other deployments of this operator with a tuner's change in flight.
    """

    deployment: Object
    children: Mapping[str, tuple[Object, ...]] = field(default_factory=dict)
    pods: tuple[Object, ...] = ()
    readings: Mapping[str, EngineReading] = field(default_factory=dict)
    inputs: Inputs
    config: Config = field(default_factory=Config)
    admin_token_digests: tuple[str, ...] = ()
    failures: tuple[WriteFailure, ...] = ()
    rewrites: Mapping[str, int] = field(default_factory=dict)
    events: tuple[PodEvent, ...] = ()
    measured: Measured = field(default_factory=Measured)
    num_changing: int = 0

"""The pod template of a deployment and the child Deployment that runs it.

The template is whole: its hash names the Deployment, so nothing that changes it is ever ignored.
Each Deployment keeps the template that it was made with; a new one gets another Deployment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_crds.llmdeployment import API_VERSION, KIND
from paceline_crds.settings import EngineSettings
from paceline_crds.spec import LLMDeploymentSpec, Runtime
from paceline_crds.spec_pods import GPU_RESOURCE
from paceline_operator.render import hash as template_hash
from paceline_operator.render import names, paceline, vllm, volumes, waits
from paceline_operator.render.inputs import PinnedInputs
from paceline_operator.render.volumes import Volumes
from paceline_operator.resources import objects
from paceline_operator.resources.parse import Identity

_UNKNOWN_HASH = "0" * template_hash.LENGTH
"""Stands for the hash inside of what is hashed."""
_USER = 65532


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A pod template with its hash, and the settings and inputs that it was made from."""

    hash: str
    body: Mapping[str, Any]
    settings: EngineSettings
    inputs: PinnedInputs


def template(
    identity: Identity, spec: LLMDeploymentSpec, settings: EngineSettings, inputs: PinnedInputs
) -> Template:
    """The pod template of a spec; `inputs.settings_under` gives its settings."""
    draft = _body(identity, spec, settings, inputs, _UNKNOWN_HASH)
    digest = template_hash.of_template(draft)
    body = _body(identity, spec, settings, inputs, digest)
    return Template(hash=digest, body=body, settings=settings, inputs=inputs)


def deployment(
    identity: Identity, made: Template, replicas: int, owner: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The Deployment of a template. Its strategy never acts, since the template never changes."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": names.child(identity.name, made.hash),
            "namespace": identity.namespace,
            "labels": {
                **names.labels(identity.name, identity.instance),
                names.HASH_LABEL: made.hash,
            },
            "annotations": {names.INPUTS_ANNOTATION: made.inputs.encode()},
            **owned_by(owner),
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": names.hash_selector(identity.name, made.hash)},
            "strategy": {"type": "Recreate"},
            "revisionHistoryLimit": 0,
            "template": made.body,
        },
    }


def owner_reference(identity: Identity) -> dict[str, Any] | None:
    """The LLMDeployment as controller; None for a manifest that no server has seen.

    Deletion is not blocked by children: that would need a right on finalizers.
    """
    if not identity.uid:
        return None
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": identity.name,
        "uid": identity.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def owned_by(owner: Mapping[str, Any] | None) -> dict[str, Any]:
    """The field of metadata, absent without an owner."""
    return {} if owner is None else {"ownerReferences": [dict(owner)]}


def _body(
    identity: Identity,
    spec: LLMDeploymentSpec,
    settings: EngineSettings,
    inputs: PinnedInputs,
    digest: str,
) -> dict[str, Any]:
    defaults = inputs.pod_defaults
    mine = Volumes()
    timing = waits.of_spec(spec)
    place = volumes.of_model(mine, spec, defaults)
    if spec.runtime is Runtime.VLLM:
        engine = vllm.container(spec, settings, place, timing)
        vllm.add_volumes(mine, spec)
    else:
        engine = paceline.container(spec, settings, place, timing)
        paceline.add_volumes(mine, spec, names.child(identity.name, digest))
    mine.add("tmp", {"emptyDir": {}}, "/tmp")  # noqa: S108 - a volume of the pod's own
    env = _merged(engine.pop("env"), objects.items(defaults, "env"), _user_env(spec))
    container = {
        **engine,
        "image": spec.image or inputs.image,
        "env": env,
        "resources": _resources(spec, defaults),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mine.mounts, *objects.items(defaults, "volumeMounts")],
    }
    if policy := objects.text(defaults, "imagePullPolicy"):
        container["imagePullPolicy"] = policy
    return {
        "metadata": _metadata(identity, spec, defaults, digest),
        "spec": _without_empty(
            {
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "securityContext": _security(defaults),
                "terminationGracePeriodSeconds": timing.grace_period_s,
                "containers": [_without_empty(container)],
                "volumes": [*mine.volumes, *objects.items(defaults, "volumes")],
                "topologySpreadConstraints": [_spread(identity.name)],
                **_placement(spec, defaults),
            }
        ),
    }


def _metadata(
    identity: Identity, spec: LLMDeploymentSpec, defaults: Mapping[str, Any], digest: str
) -> dict[str, Any]:
    own = spec.pod_template
    labels = {
        **objects.mapping(defaults, "labels"),
        **((own.labels if own else None) or {}),
        **names.labels(identity.name, identity.instance),
        names.HASH_LABEL: digest,
    }
    annotations = {
        **objects.mapping(defaults, "annotations"),
        **((own.annotations if own else None) or {}),
    }
    return _without_empty({"labels": labels, "annotations": annotations})


def _security(defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
        **objects.mapping(defaults, "podSecurityContext"),
    }


def _resources(spec: LLMDeploymentSpec, defaults: Mapping[str, Any]) -> dict[str, Any]:
    own = spec.resources
    limits = {**objects.mapping(defaults, "resources", "limits")}
    requests = {**objects.mapping(defaults, "resources", "requests")}
    if own is not None:
        limits |= own.limits or {}
        requests |= own.requests or {}
        if own.gpus:
            limits[own.gpu_resource or GPU_RESOURCE] = str(own.gpus)
    return _without_empty({"limits": _texts(limits), "requests": _texts(requests)})


def _texts(amounts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _placement(spec: LLMDeploymentSpec, defaults: Mapping[str, Any]) -> dict[str, Any]:
    own = (
        spec.pod_template.model_dump(mode="json", by_alias=True, exclude_none=True)
        if spec.pod_template
        else {}
    )
    placed = {
        key: own.get(key, defaults.get(key))
        for key in ("imagePullSecrets", "priorityClassName", "runtimeClassName", "schedulerName")
    }
    placed["nodeSelector"] = {
        **objects.mapping(defaults, "nodeSelector"),
        **own.get("nodeSelector", {}),
    }
    placed["tolerations"] = [*objects.items(defaults, "tolerations"), *own.get("tolerations", [])]
    return placed


def _user_env(spec: LLMDeploymentSpec) -> list[dict[str, Any]]:
    return [
        item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in spec.env or ()
    ]


def _merged(*lists: Any) -> list[dict[str, Any]]:
    """Variables by name, a later list wins; in the order of first mention."""
    merged: dict[str, dict[str, Any]] = {}
    for item in (item for items in lists for item in items):
        merged[str(item.get("name"))] = dict(item)
    return list(merged.values())


def _spread(name: str) -> dict[str, Any]:
    """Replicas prefer different nodes, and go where there is room."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.pod_selector(name)},
    }


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that say something: the server drops empty ones, so they would never match."""
    return {key: value for key, value in fields.items() if value not in (None, "", [], {}, ())}

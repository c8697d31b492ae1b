"""How pods are reached: the Service, who may come in, and the pool of the Gateway API."""

from collections.abc import Mapping
from typing import Any

from paceline_crds import routes
from paceline_crds.spec import LLMDeploymentSpec, Runtime, value_at
from paceline_operator.render import names, pods
from paceline_operator.resources.parse import Identity


def endpoint(identity: Identity, spec: LLMDeploymentSpec) -> str:
    """Base URL for clients within the cluster."""
    return f"http://{identity.name}.{identity.namespace}.svc:{port(spec)}{routes.OPENAI_BASE}"


def port(spec: LLMDeploymentSpec) -> int:
    """Port of the Service."""
    return spec.service.port if spec.service else names.HTTP_PORT


def service(
    identity: Identity, spec: LLMDeploymentSpec, owner: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The Service in front of the pods of all hashes; readiness decides who gets requests."""
    kind = spec.service.type if spec.service and spec.service.type else "ClusterIP"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(identity, owner),
        "spec": {
            "type": str(kind),
            "selector": names.pod_selector(identity.name),
            "ports": [
                {
                    "name": names.HTTP_PORT_NAME,
                    "port": port(spec),
                    "targetPort": names.HTTP_PORT_NAME,
                    "protocol": "TCP",
                }
            ],
        },
    }


def policy(
    identity: Identity,
    spec: LLMDeploymentSpec,
    owner: Mapping[str, Any] | None,
    *,
    operator_namespace: str,
    operator_labels: Mapping[str, str],
) -> dict[str, Any]:
    """Everybody may ask the model; only the operator reaches the admin port.

    What pods may reach is not limited: models come from anywhere.
    """
    ingress: list[dict[str, Any]] = [{"ports": [{"port": names.HTTP_PORT_NAME, "protocol": "TCP"}]}]
    if spec.runtime is not Runtime.VLLM and operator_namespace:
        peer: dict[str, Any] = {
            "namespaceSelector": {
                "matchLabels": {"kubernetes.io/metadata.name": operator_namespace}
            }
        }
        if operator_labels:
            peer["podSelector"] = {"matchLabels": dict(operator_labels)}
        ingress.append(
            {"ports": [{"port": names.ADMIN_PORT_NAME, "protocol": "TCP"}], "from": [peer]}
        )
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(identity, owner),
        "spec": {
            "podSelector": {"matchLabels": names.pod_selector(identity.name)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def inference_pool(
    identity: Identity, spec: LLMDeploymentSpec, owner: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """The InferencePool of the Gateway API inference extension, None unless spec asks for one."""
    picker = value_at(spec, "gateway.inferencePool.endpointPicker")
    if picker is None:
        return None
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": metadata(identity, owner),
        "spec": {
            "selector": {"matchLabels": names.pod_selector(identity.name)},
            "targetPorts": [{"number": names.HTTP_PORT}],
            "endpointPickerRef": {
                "group": "",
                "kind": "Service",
                "name": picker.name,
                "port": {"number": picker.port},
                "failureMode": "FailOpen",
            },
        },
    }


def metadata(identity: Identity, owner: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata of a child that has the deployment's own name."""
    return {
        "name": identity.name,
        "namespace": identity.namespace,
        "labels": names.labels(identity.name, identity.instance),
        **pods.owned_by(owner),
    }

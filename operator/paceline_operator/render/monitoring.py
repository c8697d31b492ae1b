"""How pods are watched, and how many may be taken away at once."""

from collections.abc import Mapping
from typing import Any

from paceline_crds import routes
from paceline_crds.spec import LLMDeploymentSpec, value_at
from paceline_operator.render import names, network
from paceline_operator.resources.parse import Identity

DEFAULT_INTERVAL = "15s"


def pod_monitor(
    identity: Identity, spec: LLMDeploymentSpec, owner: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """The PodMonitor of the Prometheus operator, None if spec turns it off."""
    wanted = value_at(spec, "monitoring.podMonitor")
    if wanted is not None and wanted.enabled is False:
        return None
    interval = (wanted.interval if wanted else None) or DEFAULT_INTERVAL
    metadata = network.metadata(identity, owner)
    metadata["labels"] = {**((wanted.labels if wanted else None) or {}), **metadata["labels"]}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": names.pod_selector(identity.name)},
            "podMetricsEndpoints": [
                {"port": names.HTTP_PORT_NAME, "path": routes.METRICS, "interval": interval}
            ],
            "podTargetLabels": [names.DEPLOYMENT_LABEL, names.HASH_LABEL],
        },
    }


def disruption_budget(
    identity: Identity, min_available: int, owner: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The PodDisruptionBudget over the pods of all hashes.

    minAvailable and not maxUnavailable: the latter makes the disruption controller sum the
    replicas of both Deployments of a surge, which blocks evictions while models load.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": network.metadata(identity, owner),
        "spec": {
            "minAvailable": min_available,
            "selector": {"matchLabels": names.pod_selector(identity.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }

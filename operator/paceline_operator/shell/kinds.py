"""Kinds of the API that the operator reads or writes, and their paths."""

from collections.abc import Mapping
from dataclasses import dataclass

from paceline_crds import llmdeployment
from paceline_operator.decide.observed import CHILD_KINDS


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind with its place in the API."""

    name: str
    group: str
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """As manifests have it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Path of an object, of a list in a namespace, or of a list in all of them."""
        parts = [f"/apis/{self.group}" if self.group else "/api", self.version]
        parts += ["namespaces", namespace] if namespace else []
        return "/".join([*parts, self.plural, *filter(None, (name, subresource))])


LLM_DEPLOYMENT = Kind(
    llmdeployment.KIND, llmdeployment.GROUP, llmdeployment.VERSION, llmdeployment.PLURAL
)
POD = Kind("Pod", "", "v1", "pods")
EVENT = Kind("Event", "", "v1", "events")
LEASE = Kind("Lease", "coordination.k8s.io", "v1", "leases")
_CHILDREN = (
    Kind("Deployment", "apps", "v1", "deployments"),
    Kind("ConfigMap", "", "v1", "configmaps"),
    Kind("Service", "", "v1", "services"),
    Kind("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
    Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets"),
    Kind("PodMonitor", "monitoring.coreos.com", "v1", "podmonitors"),
    Kind("InferencePool", "inference.networking.k8s.io", "v1", "inferencepools"),
)
CHILDREN: Mapping[str, Kind] = {kind.name: kind for kind in _CHILDREN}
OPTIONAL = ("PodMonitor", "InferencePool")
"""Kinds that a cluster may not know."""
WATCHED: tuple[Kind, ...] = (LLM_DEPLOYMENT, POD, *(CHILDREN[name] for name in CHILD_KINDS))


def of(name: str) -> Kind:
    """A kind of WATCHED by its name."""
    return next(kind for kind in WATCHED if kind.name == name)

"""Names and labels of children. A deployment's name ends at 52 characters, a hash has ten."""

import re
from collections.abc import Mapping

from paceline_operator.resources.parse import INSTANCE_LABEL

DEPLOYMENT_LABEL = "paceline.dev/deployment"
HASH_LABEL = "paceline.dev/template-hash"
INPUTS_ANNOTATION = "paceline.dev/inputs"
RETIRING_ANNOTATION = "paceline.dev/retiring-since"
DRAINING_ANNOTATION = "paceline.dev/draining-since"
DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"

HTTP_PORT_NAME = "http"
ADMIN_PORT_NAME = "admin"
HTTP_PORT = 8000
ADMIN_PORT = 8001


def child(name: str, template_hash: str) -> str:
    """Name of a hash's Deployment and of its ConfigMap: at most 63 characters."""
    return f"{name}-{template_hash}"


def labels(name: str, instance: str) -> dict[str, str]:
    """Labels of every child: the shell finds children by them, each install its own."""
    return {
        "app.kubernetes.io/name": "paceline-engine",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": "paceline",
        DEPLOYMENT_LABEL: name,
        INSTANCE_LABEL: instance,
    }


def scraped(label: str) -> str:
    """A pod's label as Prometheus names it."""
    return re.sub(r"\W", "_", label)


def pod_selector(name: str) -> dict[str, str]:
    """The one stable label of the pods of all hashes."""
    return {DEPLOYMENT_LABEL: name}


def hash_selector(name: str, template_hash: str) -> dict[str, str]:
    """Selects the pods of one hash."""
    return {DEPLOYMENT_LABEL: name, HASH_LABEL: template_hash}


def as_text(selector: Mapping[str, str]) -> str:
    """A selector as `status.selector` has it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))

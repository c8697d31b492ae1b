"""The CustomResourceDefinition of the LLMDeployment."""

from typing import Any

from paceline_crds import schema
from paceline_crds.llmdeployment import (
    GROUP,
    KIND,
    NAME_RULE,
    PLURAL,
    SHORT_NAME,
    VERSION,
    LLMDeployment,
)
from paceline_crds.rules import VALIDATIONS
from paceline_crds.spec import LLMDeploymentSpec
from paceline_crds.status import ConditionType, LLMDeploymentStatus

SCHEMA_VERSION = 1
"""Raised by one in each release that changes the schema: a cluster never takes an older one."""
SCHEMA_VERSION_ANNOTATION = f"{GROUP}/schema-version"
_TOLD = "Schema version "
"""Before the number in the description, which everybody may read, also without rights on CRDs."""


def told_version(description: str) -> int:
    """The version that a served schema's description tells; 0 if it tells none, as old ones do."""
    number = description.rpartition(_TOLD)[2].rstrip(".")
    return int(number) if number.isdecimal() else 0


def definition() -> dict[str, Any]:
    """The whole object, ready to be applied."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{PLURAL}.{GROUP}",
            "annotations": {SCHEMA_VERSION_ANNOTATION: str(SCHEMA_VERSION)},
        },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": _schema()},
                }
            ],
        },
    }


def _schema() -> dict[str, Any]:
    return {
        "description": f"{LLMDeployment.__doc__} {_TOLD}{SCHEMA_VERSION}.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": "Version of the schema.", "type": "string"},
            "kind": {"description": "Kind of the object.", "type": "string"},
            "metadata": {"type": "object"},
            "spec": schema.structural(LLMDeploymentSpec, keep_defaults=True),
            "status": schema.structural(LLMDeploymentStatus),
        },
        VALIDATIONS: [NAME_RULE.as_schema()],
    }


def _columns() -> list[dict[str, Any]]:
    ready, slo = ConditionType.READY, ConditionType.SLO_MET
    return [
        _column("Ready", _condition(ready, "status")),
        _column("Reason", _condition(ready, "reason")),
        _column("Replicas", ".status.replicas", kind="integer"),
        _column("Model", ".spec.model.uri"),
        _column("SLO", _condition(slo, "status")),
        _column("Tuning", ".status.tuning.state"),
        _column("Age", ".metadata.creationTimestamp", kind="date"),
        _column("Image", ".status.image", wide=True),
        _column("KV", ".status.capacity.kvTokens", kind="integer", wide=True),
        _column("Endpoint", ".status.endpoint", wide=True),
    ]


def _column(name: str, path: str, *, kind: str = "string", wide: bool = False) -> dict[str, Any]:
    priority = {"priority": 1} if wide else {}
    return {"name": name, "type": kind, "jsonPath": path, **priority}


def _condition(name: ConditionType, field: str) -> str:
    return f'.status.conditions[?(@.type=="{name}")].{field}'

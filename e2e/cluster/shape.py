"""What became of LLMDeployments, without what differs by chance: for comparisons of two ways there.

Names, hashes (which are made of names too) and tokens are left out, so that two deployments of the
same spec have the same shape.
"""

import json
from collections.abc import Iterable
from typing import Any

from cluster.client import Document
from cluster.deployment import NAME
from cluster.namespace import Namespace

_KINDS = "deployments,configmaps,services,networkpolicies,poddisruptionbudgets"
_LABEL = "paceline.dev/deployment"
_GIVEN = {"clusterIP", "clusterIPs", "nodePort", "healthCheckNodePort"}
"""Fields that the server chooses for each object anew."""


def shape(namespace: Namespace, name: str = NAME) -> Document:
    """The children of one LLMDeployment and what its status says."""
    children = namespace.items(_KINDS, f"--selector={_LABEL}={name}")
    return _shape(namespace.get("llmdep", name), children)


def shapes(namespace: Namespace) -> dict[str, Document]:
    """The same of all in a namespace, by name: two lists, however many there are."""
    found = namespace.items("llmdep")
    children: dict[str, list[Document]] = {item["metadata"]["name"]: [] for item in found}
    for item in namespace.items(_KINDS, f"--selector={_LABEL}"):
        children.setdefault(item["metadata"]["labels"][_LABEL], []).append(item)
    return {
        name: _shape(item, children[name]) for item in found for name in (item["metadata"]["name"],)
    }


def _shape(found: Document, items: Iterable[Document]) -> Document:
    status = found.get("status", {})
    digest = status.get("wantedHash") or "none"
    children: Document = {}
    for item in items:
        kept = {key: item[key] for key in ("spec", "data") if key in item}
        kept.get("data", {}).pop("admin-token-sha256", None)
        if "settings.json" in kept.get("data", {}):
            settings = json.loads(kept["data"]["settings.json"])
            kept["data"]["settings.json"] = settings["settings"]
        children[f"{item['kind']}/{item['metadata']['name']}"] = _without(kept, _GIVEN)
    told = {
        "children": children,
        "replicas": status.get("replicas"),
        "conditions": [[c["type"], c["status"], c["reason"]] for c in status.get("conditions", [])],
        "effective": [[e["name"], e["value"], e["source"]] for e in status.get("effective", [])],
    }
    text = json.dumps(told, sort_keys=True).replace(digest, "HASH")
    shaped: Document = json.loads(text.replace(found["metadata"]["name"], "NAME"))
    return shaped


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(each, names) for key, each in value.items() if key not in names}
    return [_without(each, names) for each in value] if isinstance(value, list) else value

"""The end state of a cluster in memory, without what differs from run to run."""

import copy
import json
from collections.abc import Mapping
from typing import Any

from paceline_crds import llmdeployment
from paceline_operator.render import names
from paceline_operator.resources import objects
from paceline_operator.testing.engine import Engine
from paceline_operator.testing.store import Store


def of(store: Store, engines: Mapping[str, Engine], status: Mapping[str, Any]) -> dict[str, Any]:
    """Children, pods by template, settings of engines, status."""
    children = {
        f"{kind}/{name}": _bare(item)
        for (kind, name), item in sorted(store.objects.items())
        if kind not in {"Pod", llmdeployment.KIND}
    }
    pods = sorted(
        (objects.labels(pod).get(names.HASH_LABEL, ""), bool(objects.is_deleted(pod)))
        for pod in store.of_kind("Pod")
    )
    live = sorted(json.dumps(engine.settings, sort_keys=True) for engine in engines.values())
    return {"children": children, "pods": pods, "engines": live, "status": _told(status)}


def _bare(item: Mapping[str, Any]) -> dict[str, Any]:
    """What was applied, without what differs from run to run."""
    kept = {key: copy.deepcopy(item[key]) for key in ("spec", "data") if key in item}
    if "settings.json" in kept.get("data", {}):
        kept["data"]["settings.json"] = json.loads(kept["data"]["settings.json"])["settings"]
    return kept


def _told(status: Mapping[str, Any]) -> dict[str, Any]:
    """Status without times, generations and revisions."""
    told = {
        key: value for key, value in status.items() if key not in {"observedGeneration", "tuning"}
    }
    told.pop("settingsRevision", None)
    told["conditions"] = [
        {key: item[key] for key in ("type", "status", "reason", "message")}
        for item in told.get("conditions", [])
    ]
    told["effective"] = [
        {key: item[key] for key in ("name", "value", "source")}
        for item in told.get("effective", [])
    ]
    return told

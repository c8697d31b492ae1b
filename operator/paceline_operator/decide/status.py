"""`status` as it should read, and whether it differs from what stands there."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_crds.settings import border_name, knobs
from paceline_crds.source import Source
from paceline_operator.decide.pod_view import PodView
from paceline_operator.resources import objects
from paceline_operator.resources.overlay import Wanted, text_of

_LONGEST_VALUE = 128
"""As the schema has it: an engine of another release may say more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Pods as status counts them."""

    replicas: int
    ready: int
    updated: int
    available: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What status says beside conditions; None leaves what stood there."""

    generation: int
    counts: Counts
    selector: str
    endpoint: str | None = None
    image: str | None = None
    wanted_hash: str | None = None
    template_version: int | None = None
    revision: Mapping[str, int] | None = None
    effective: list[dict[str, Any]] | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] | None = None


def build(
    report: Report, conditions: list[dict[str, Any]], before: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole status, in the order of the schema."""
    counts = report.counts
    is_same_template = before.get("wantedHash") == report.wanted_hash
    kept = {
        key: before[key] for key in ("capacity", "memoryPlan") if is_same_template and key in before
    }
    fields: dict[str, Any] = {
        "observedGeneration": report.generation,
        "replicas": counts.replicas,
        "readyReplicas": counts.ready,
        "updatedReplicas": counts.updated,
        "availableReplicas": counts.available,
        "selector": report.selector,
        "endpoint": report.endpoint or before.get("endpoint"),
        "image": report.image or before.get("image"),
        "wantedHash": report.wanted_hash or before.get("wantedHash"),
        "templateVersion": report.template_version or before.get("templateVersion"),
        "settingsRevision": report.revision or before.get("settingsRevision"),
        "effective": before.get("effective") if report.effective is None else report.effective,
        **kept,
        **report.measured,
        "tuning": report.tuning or before.get("tuning"),
        "conditions": conditions,
    }
    return {key: value for key, value in fields.items() if value is not None}


def effective(
    wanted: Wanted,
    in_template: Mapping[str, Any],
    pods: Iterable[PodView],
    before: Iterable[Mapping[str, Any]],
    now: float,
    engine_decided: frozenset[str] = frozenset(),
) -> list[dict[str, Any]]:
    """Each setting in force with its source; `since` stays as long as value and source do.

    Args:
        wanted: settings with the overlay that holds.
        in_template: snake_case name -> value, of what new pods are needed for.
        pods: of the wanted template; an engine's word fills what nobody set.
        before: as status had it.
        now: seconds since the epoch.
        engine_decided: snake_case names that an engine decides even though a default exists.
    """
    old = {item.get("name"): item for item in before}
    said, stamp = _said(pods), objects.timestamp(now)
    entries = []
    for name in knobs():
        label = border_name(name)
        value = in_template.get(name, getattr(wanted.settings, name))
        source = wanted.sources[name]
        if name in engine_decided or (value is None and source is Source.DEFAULT):
            source = Source.ENGINE
            # Until an engine has spoken, its last word stands: no flicker while pods restart.
            last = old.get(label, {})
            fallback = last.get("value", "") if last.get("source") == Source.ENGINE else ""
            shown = text_of(said[label])[:_LONGEST_VALUE] if label in said else fallback
        else:
            shown = text_of(value)
        entry = {"name": label, "value": shown, "source": source.value}
        last = old.get(label, {})
        is_same = (last.get("value"), last.get("source")) == (shown, source.value)
        since = last.get("since") if is_same else None
        entries.append({**entry, "since": since or stamp})
    return entries


def measured(pods: Iterable[PodView]) -> dict[str, Any]:
    """Capacity and memory plan of one pod: of the first that says them."""
    for pod in pods:
        reading = pod.reading
        if reading is None or not reading.is_reachable or not reading.capacity:
            continue
        tokens = reading.capacity.get("kvTokens", 0)
        longest = reading.capacity.get("maxModelLen", 0)
        capacity = {"kvBlocks": reading.capacity.get("kvBlocks", 0), "kvTokens": tokens}
        if longest > 0:
            capacity["maxConcurrency"] = tokens // longest
        found: dict[str, Any] = {"capacity": capacity}
        if reading.memory_plan:
            plan = sorted(reading.memory_plan.items())[:32]
            found["memoryPlan"] = {name: max(0, int(value)) for name, value in plan}
        return found
    return {}


def newest(entries: Iterable[Mapping[str, Any]]) -> float:
    """When the newest entry of `effective` came into force, 0 if nobody says."""
    return max((objects.seconds(item.get("since")) or 0.0 for item in entries), default=0.0)


def _said(pods: Iterable[PodView]) -> Mapping[str, Any]:
    for pod in pods:
        if pod.reading and pod.reading.is_reachable and pod.reading.settings:
            return pod.reading.settings
    return {}

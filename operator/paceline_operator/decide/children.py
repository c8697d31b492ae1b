"""Which children are ours, and the writes that bring one to what is wanted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_operator.decide import normalise
from paceline_operator.decide.actions import Apply, Delete
from paceline_operator.decide.observed import CHILD_KINDS, Object, Observed
from paceline_operator.resources import objects
from paceline_operator.resources.parse import INSTANCE_LABEL, Identity

DELETED_KINDS = frozenset({"Deployment", "PodDisruptionBudget", "PodMonitor", "InferencePool"})
"""Children that go before their owner does; of the others the chart gives no right to delete."""
NEEDED_KINDS = frozenset({"Deployment", "ConfigMap", "Service"})
"""Children without which nothing is served: Ready waits until each of them is seen."""
CONTENDED_AFTER = 5
"""Rewrites within ten minutes after which a child is left to whoever fights for it.

Status is left alone in the same way, since two installs that take the same LLMDeployment disagree
about it for ever. It is status that has to tell it, so it does so some rewrites earlier.
"""
CONTENDED_TOLD_AFTER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """Children by kind and name.

    Attributes:
        ours: kind -> name -> object; not those whose deletion has begun.
        taken: (kind, name) of everything else that has such a name.
        foreign: `Kind/name` of children that belong to another LLMDeployment or install.
    """

    ours: Mapping[str, Mapping[str, Object]]
    taken: frozenset[tuple[str, str]]
    foreign: tuple[str, ...]

    def one(self, kind: str, name: str) -> Object | None:
        """One child of ours."""
        return self.ours.get(kind, {}).get(name)

    def all(self, kind: str) -> tuple[Object, ...]:
        """Children of ours of one kind, by name."""
        return tuple(child for _, child in sorted(self.ours.get(kind, {}).items()))


def sort(observed: Observed, identity: Identity) -> Children:
    """Tell ours from others.

    A child whose controller has another uid is never ours. A ConfigMap belongs to a Deployment; one
    whose Deployment has gone is about to be collected and blocks nobody but its own name.
    """
    ours: dict[str, dict[str, Object]] = {}
    taken: set[tuple[str, str]] = set()
    foreign: list[str] = []
    owners = {"", identity.uid}
    for kind in CHILD_KINDS:
        for child in observed.children.get(kind, ()):
            name = objects.name(child)
            is_mine = (
                objects.labels(child).get(INSTANCE_LABEL, identity.instance) == identity.instance
                and objects.controller_uid(child) in owners
            )
            if is_mine and not objects.is_deleted(child):
                ours.setdefault(kind, {})[name] = child
                if kind == "Deployment":
                    owners.add(objects.uid(child))
                continue
            taken.add((kind, name))
            if not is_mine and kind != "ConfigMap":
                foreign.append(f"{kind}/{name}")
    return Children(ours=ours, taken=frozenset(taken), foreign=tuple(foreign))


@dataclass(slots=True)
class Writes:
    """Makes the writes for single children. Mutable.

    Attributes:
        contended: `Kind/name` of those that others fight for.
        missing: `Kind/name` of needed ones that are not there, or not ours.
    """

    observed: Observed
    children: Children
    contended: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def apply(self, desired: Mapping[str, Any], *, is_optional: bool = False) -> list[Apply]:
        """One apply if the live object differs, none if it does not or if its name is taken."""
        kind, name = desired["kind"], desired["metadata"]["name"]
        live = self.children.one(kind, name)
        if live is None:
            if kind in NEEDED_KINDS:
                self.missing.append(f"{kind}/{name}")
            if (kind, name) in self.children.taken:
                return []
            return [Apply(manifest=desired, is_optional=is_optional)]
        if not normalise.needs_write(desired, live, self.observed.config.field_manager):
            return []
        if self.observed.rewrites.get(f"{kind}/{name}", 0) >= CONTENDED_AFTER:
            self.contended.append(f"{kind}/{name}")
            return []
        return [
            Apply(
                manifest=desired,
                uid=objects.uid(live),
                resource_version=objects.text(live, "metadata", "resourceVersion"),
                is_optional=is_optional,
            )
        ]

    def delete(self, kind: str, name: str) -> list[Delete]:
        """Delete a child of ours if it is there.

        Args:
            kind: one of DELETED_KINDS.
            name: of the child.
        """
        assert kind in DELETED_KINDS, f"the operator has no right to delete a {kind}"
        live = self.children.one(kind, name)
        return [] if live is None else [deletion(live, kind)]


def deletion(live: Object, kind: str) -> Delete:
    """The deletion of an object as it was seen."""
    return Delete(
        api_version=objects.text(live, "apiVersion"),
        kind=objects.text(live, "kind") or kind,
        namespace=objects.text(live, "metadata", "namespace"),
        name=objects.name(live),
        uid=objects.uid(live),
        resource_version=objects.text(live, "metadata", "resourceVersion") or None,
    )


def min_available(live: Object | None, replicas: int, num_serving: int) -> int | None:
    """`minAvailable` of the disruption budget, None for no budget.

    One less than wanted. It is lowered at once, and raised once enough pods serve: raised earlier
    it would block the eviction of healthy pods while new ones load.
    """
    if replicas <= 1:
        return None
    target = replicas - 1
    present = objects.at(live, "spec", "minAvailable") if live is not None else None
    if not isinstance(present, int) or target <= present or num_serving >= replicas:
        return target
    return present

"""`plan(observed, now)`: what to do next. Total: odd input gives a condition, never an exception.

The shell carries the actions out in order (`actions.py` says what a refused one means) and calls
again when anything has changed, or after `requeue_after_s`.

Order: status first, since it holds the intent that later writes rely on; then what must not come
too late (a lower disruption budget before pods go), a Deployment before its ConfigMap (which it
owns) and its ConfigMap before its first pod; settings to pods before pods are replaced; last what
serving does not need. What has neither status nor a child yet gets its children first, then the
status that says they are there: no pod runs that an intent could be about.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline_crds.spec import LLMDeploymentSpec
from paceline_operator.decide import (
    case,
    children,
    normalise,
    pin,
    pod_view,
    report,
    rollout,
    settings_push,
    tuned,
)
from paceline_operator.decide.actions import Action, Event, Plan, WriteStatus
from paceline_operator.decide.case import Case
from paceline_operator.decide.children import Children, Writes
from paceline_operator.decide.observed import EngineReading, Object, Observed
from paceline_operator.decide.pod_view import PodView
from paceline_operator.decide.reasons import Reason
from paceline_operator.decide.rollout import Group, Rollout, Wish
from paceline_operator.decide.settings_push import Known, Push
from paceline_operator.decide.tuned import Tuned
from paceline_operator.render import monitoring, names, network, pods, settings_map
from paceline_operator.render.settings_map import Recorded
from paceline_operator.resources import objects, overlay, parse
from paceline_operator.resources.parse import Parsed

NOTHING = Plan(asks_readings=False)
_CONTENDED_S = 60.0
"""Whose status somebody else keeps changing is looked at again after so long."""


def plan(observed: Observed, now: float) -> Plan:
    """The next writes for one LLMDeployment, nothing if all is as it should be."""
    document = observed.deployment
    if not _is_whole(document) or objects.is_deleted(document):
        return NOTHING
    result = parse.parse(document)
    if result.identity.instance != observed.config.instance:
        return NOTHING
    mine = children.sort(observed, result.identity)
    deployments = mine.all("Deployment")
    born = {pin.hash_of(child): objects.created_at(child) for child in deployments}
    views = pod_view.views(observed, born, case.gpu_resource(result))
    maps = _maps(mine)
    if not isinstance(result, Parsed):
        wanted = case.of_refused(result, deployments, maps, document)
        refused = _Round(observed, now, wanted, mine, views, maps)
        return refused.plan(refused.push())
    wanted = case.of_parsed(result, deployments, _readings(views), observed)
    known = _Round(observed, now, wanted, mine, views, maps)
    push = known.push()
    turned = tuned.turn(observed, result, wanted, views, push, now)
    if turned.is_moved:
        result = parse.parse(_with_tuning(document, turned.status))
        assert isinstance(result, Parsed)
        wanted = case.of_parsed(result, deployments, _readings(views), observed)
        known = _Round(observed, now, wanted, mine, views, maps)
        push = known.push()
    return replace(known, turned=turned).plan(push)


def _with_tuning(document: Object, tuning: Mapping[str, Any]) -> Object:
    """The object as it will be once the tuner's intent is written."""
    return {**document, "status": {**objects.mapping(document, "status"), "tuning": tuning}}


@dataclass(slots=True)
class _Round:
    """One reconcile: everything that the steps below share. Reads; changes nothing outside."""

    observed: Observed
    now: float
    case: Case
    children: Children
    views: tuple[PodView, ...]
    maps: Mapping[str, Recorded]
    turned: Tuned | None = None

    def plan(self, push: Push | None) -> Plan:
        """Decide, then put the writes in order.

        Args:
            push: what `push()` says; it is asked for before the tuner's turn already.
        """
        groups = self._groups()
        wish = Wish(
            hash=self.case.hash,
            replicas=self.case.replicas,
            strategy=self.case.strategy,
            waits=self.case.waits,
            can_drain=self.case.values is not None,
        )
        rolled = rollout.decide(wish, groups, self.now)
        writes = Writes(self.observed, self.children)
        acts: list[Action] = []
        if not self.children.foreign:
            acts = self._writes(writes, rolled, push)
        is_paused = self.case.spec is not None and bool(self.case.spec.paused)
        is_newborn = bool(acts) and not is_paused and self._is_newborn()
        told = report.Round(
            observed=self.observed,
            case=self.case,
            views=self.views,
            groups=tuple(groups),
            wish=wish,
            rolled=rolled,
            push=push,
            foreign=self.children.foreign,
            contended=(*writes.contended, *self._contended_status()),
            missing=() if is_newborn else tuple(writes.missing),
            deployment=self._deployment(self.case.hash),
            turned=self.turned,
        ).tell(self.now)
        before = objects.mapping(self.observed.deployment, "status")
        first: list[Action] = []
        if told.status != before and self._num_status_rewrites() >= children.CONTENDED_AFTER:
            return Plan(requeue_after_s=_CONTENDED_S)
        if told.status != before:
            first.append(self._status(told.status))
        first += told.events
        if is_paused:
            return Plan(actions=tuple(first), requeue_after_s=None)
        first += self._announcements()
        actions = (*acts, *first) if is_newborn else (*first, *acts)
        return Plan(actions=actions, requeue_after_s=self._requeue(rolled, push, told))

    def _is_newborn(self) -> bool:
        """Whether nothing of it is there yet, and nothing speaks against making it.

        The children's writes end the plan if one is refused, so the status after them is true.
        """
        status = objects.mapping(self.observed.deployment, "status")
        there = (status, *self.children.ours.values(), self.children.taken, self.views)
        return not any(there) and not self.observed.failures

    def _num_status_rewrites(self) -> int:
        return self.observed.rewrites.get(WriteStatus.target, 0)

    def _contended_status(self) -> tuple[str, ...]:
        is_told = self._num_status_rewrites() >= children.CONTENDED_TOLD_AFTER
        return (WriteStatus.target,) if is_told else ()

    def _writes(self, writes: Writes, rolled: Rollout, push: Push | None) -> list[Action]:
        spec, identity = self.case.spec, self.case.identity
        owner = pods.owner_reference(identity)
        lowered, raised = self._budget(writes)
        acts: list[Action] = [*lowered]
        if spec is not None:
            acts += self._network(writes, spec)
        ready_to_run = True
        if self.case.template is not None and self._deployment(self.case.hash) is None:
            # Without pods at first: they would wait for the ConfigMap that this Deployment owns.
            made = writes.apply(pods.deployment(identity, self.case.template, 0, owner))
            acts += made
            ready_to_run = False
            if made and push is not None:
                acts += self._first_config_map(writes, push)
        if push is not None:
            acts += self._config_maps(writes, push)
            acts += push.patches
        acts += rolled.actions
        if ready_to_run:
            acts += self._counts(writes, rolled, push)
        for digest in rolled.finished:
            acts += writes.delete("Deployment", names.child(identity.name, digest))
        acts += raised
        if spec is not None:
            acts += self._extras(writes, spec)
        return acts

    def _network(self, writes: Writes, spec: LLMDeploymentSpec) -> list[Action]:
        identity, config = self.case.identity, self.observed.config
        owner = pods.owner_reference(identity)
        policy = network.policy(
            identity,
            spec,
            owner,
            operator_namespace=config.operator_namespace,
            operator_labels=config.operator_labels,
        )
        return [
            *writes.apply(network.service(identity, spec, owner)),
            *writes.apply(policy, is_optional=True),
        ]

    def _first_config_map(self, writes: Writes, push: Push) -> list[Action]:
        """That of the Deployment which this plan makes: it is complete once that has a uid."""
        name = names.child(self.case.identity.name, self.case.hash)
        applies = writes.apply(self._config_map(push, self.case.hash, None))
        return [replace(item, owner=name) for item in applies]

    def _config_maps(self, writes: Writes, push: Push) -> list[Action]:
        acts: list[Action] = []
        for child in self.children.all("Deployment"):
            digest = pin.hash_of(child)
            if digest in push.maps:
                owner = settings_map.owner_reference(child)
                acts += writes.apply(self._config_map(push, digest, owner))
        return acts

    def _config_map(
        self, push: Push, digest: str, owner: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        tokens = self.observed.admin_token_digests
        identity = self.case.identity
        return settings_map.config_map(identity, digest, push.maps[digest], tokens, owner)

    def _counts(self, writes: Writes, rolled: Rollout, push: Push | None) -> list[Action]:
        """Every Deployment with its count; the wanted one also with its template."""
        acts: list[Action] = []
        identity, template = self.case.identity, self.case.template
        manager = self.observed.config.field_manager
        for child in self.children.all("Deployment"):
            digest = pin.hash_of(child)
            count = rolled.replicas.get(digest, objects.whole(child, "spec", "replicas"))
            name = names.child(identity.name, digest)
            if push is not None and ("ConfigMap", name) in self.children.taken:
                count = min(count, objects.whole(child, "spec", "replicas"))
            if template is not None and digest == template.hash:
                owner = pods.owner_reference(identity)
                acts += writes.apply(pods.deployment(identity, template, count, owner))
                continue
            if count == objects.whole(child, "spec", "replicas", default=-1):
                continue
            kept = normalise.ours_of(child, manager)
            if kept is not None:
                spec = {**objects.mapping(kept, "spec"), "replicas": count}
                acts += writes.apply({**kept, "spec": spec})
        return acts

    def _budget(self, writes: Writes) -> tuple[list[Action], list[Action]]:
        """Writes of the disruption budget: those that come before pods go, and those after."""
        identity = self.case.identity
        live = self.children.one("PodDisruptionBudget", identity.name)
        num_serving = sum(view.can_serve for view in self.views)
        least = children.min_available(live, self.case.replicas, num_serving)
        if least is None:
            return list(writes.delete("PodDisruptionBudget", identity.name)), []
        if not self.case.hash:
            return [], []
        desired = monitoring.disruption_budget(identity, least, pods.owner_reference(identity))
        acts: list[Action] = list(writes.apply(desired))
        present = objects.whole(live, "spec", "minAvailable") if live is not None else least
        return (acts, []) if least < present else ([], acts)

    def _extras(self, writes: Writes, spec: LLMDeploymentSpec) -> list[Action]:
        """What serving does not need, where the cluster knows the kind."""
        identity, known = self.case.identity, self.observed.config.known_kinds
        owner = pods.owner_reference(identity)
        acts: list[Action] = []
        for kind, desired in (
            ("PodMonitor", monitoring.pod_monitor(identity, spec, owner)),
            ("InferencePool", network.inference_pool(identity, spec, owner)),
        ):
            if desired is None:
                acts += writes.delete(kind, identity.name)
            elif kind in known:
                acts += writes.apply(desired, is_optional=True)
        return acts

    def push(self) -> Push | None:
        """What engines have to be told; None where they have no settings API."""
        if self.case.values is None or not self.case.hash:
            return None
        boot = {
            pin.hash_of(child): pin.boot_of(child)
            for child in self.children.all("Deployment")
            if not _is_vllm(child)
        }
        if self.case.template is not None:
            boot.setdefault(self.case.hash, self.case.template.inputs.boot)
        return settings_push.decide(
            self.case.hash,
            self.case.values,
            boot,
            self.views,
            self._known(),
            self.case.engine_decided,
        )

    def _known(self) -> Known:
        status = objects.mapping(self.observed.deployment, "status")
        if self.case.refusal is not None:
            recorded = self.maps.get(self.case.hash)
            values = recorded.values if recorded else {}
            return Known(
                revision=recorded.revision if recorded else 0,
                texts={name: overlay.text_of(value) for name, value in values.items()},
                applied=objects.whole(status, "settingsRevision", "applied"),
                maps=self.maps,
            )
        return Known(
            revision=objects.whole(status, "settingsRevision", "wanted"),
            texts={
                objects.text(item, "name"): objects.text(item, "value")
                for item in objects.items(status, "effective")
            },
            applied=objects.whole(status, "settingsRevision", "applied"),
            maps=self.maps,
        )

    def _groups(self) -> list[Group]:
        by_hash = pod_view.by_hash(self.views)
        return [
            Group(
                hash=pin.hash_of(child),
                replicas=objects.whole(child, "spec", "replicas"),
                pods=by_hash.get(pin.hash_of(child), ()),
            )
            for child in self.children.all("Deployment")
        ]

    def _deployment(self, digest: str) -> Object | None:
        return self.children.one("Deployment", names.child(self.case.identity.name, digest))

    def _status(self, status: Mapping[str, Any]) -> WriteStatus:
        metadata = objects.mapping(self.observed.deployment, "metadata")
        return WriteStatus(
            status=status,
            uid=objects.text(metadata, "uid"),
            resource_version=objects.text(metadata, "resourceVersion"),
        )

    def _announcements(self) -> list[Action]:
        """What happens once, when a new template is made."""
        is_new = bool(self.case.hash) and self._deployment(self.case.hash) is None
        if not (is_new and self.case.raised and not self.children.foreign):
            return []
        what = ", ".join(self.case.raised)
        message = f"spec asks for more than {what} allows, which memory is planned for: new pods"
        return [Event(type="Normal", reason=Reason.BOOT_MAXIMUM_RAISED, message=message)]

    def _requeue(self, rolled: Rollout, push: Push | None, told: report.Told) -> float | None:
        waits = [told.requeue_after_s, rolled.requeue_after_s]
        if self.turned is not None:
            waits.append(self.turned.look_again_s)
        if push is not None and push.patches:
            waits.append(1.0)
        if push is not None and (push.pending or push.unreachable):
            waits.append(5.0)
        name = names.child(self.case.identity.name, self.case.hash)
        is_taken = {("Deployment", name), ("ConfigMap", name)} & self.children.taken
        if self.children.foreign or is_taken:
            waits.append(5.0)
        known = [wait for wait in waits if wait is not None]
        return min(known) if known else None


def _is_whole(document: Object) -> bool:
    metadata = objects.mapping(document, "metadata")
    return all(objects.text(metadata, key) for key in ("name", "namespace", "uid")) and isinstance(
        metadata.get("generation"), int
    )


def _readings(views: Sequence[PodView]) -> Mapping[str, Sequence[EngineReading]]:
    found: dict[str, list[EngineReading]] = {}
    for view in views:
        if view.reading is not None:
            found.setdefault(view.hash, []).append(view.reading)
    return found


def _maps(mine: Children) -> Mapping[str, Recorded]:
    found = {}
    for child in mine.all("ConfigMap"):
        recorded = settings_map.read(child)
        if recorded is not None:
            found[pin.hash_of(child)] = recorded
    return found


def _is_vllm(child: Object) -> bool:
    """Whether a Deployment runs stock vLLM, which reads no settings."""
    containers = objects.items(child, "spec", "template", "spec", "containers")
    return any(item.get("command") == ["vllm", "serve"] for item in containers)

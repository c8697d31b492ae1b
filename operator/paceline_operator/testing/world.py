"""A cluster in memory that carries out plans: controllers, a kubelet and engines in a few rules.

Time is a number that `tick` moves. Nothing happens between two calls, so a test can stop anywhere.
"""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from paceline_crds import llmdeployment
from paceline_operator.decide import plan as planning
from paceline_operator.decide.actions import (
    Action,
    AnnotatePod,
    Apply,
    Delete,
    DeletePod,
    DrainPod,
    Event,
    PatchSettings,
    Plan,
    WriteStatus,
)
from paceline_operator.decide.observed import CHILD_KINDS, Config, Inputs, Observed
from paceline_operator.render import names, settings_map
from paceline_operator.resources import objects
from paceline_operator.testing import engine as engines
from paceline_operator.testing import shape
from paceline_operator.testing.engine import Engine
from paceline_operator.testing.store import Object, Refused, Store

START = 1_800_000_000.0
MAX_ROUNDS = 400


class World:
    """One namespace with one LLMDeployment. Mutable.

    Attributes:
        now: seconds since the epoch.
        gpus_free: devices that are left; None for any number.
        breaks: says of a container's arguments whether and how the start fails.
        journal: the actions carried out, as `Kind target`.
        events: events written.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        *,
        name: str = "demo",
        inputs: Inputs | None = None,
        config: Config | None = None,
        gpus_free: int | None = None,
        load_s: float = 2.0,
    ) -> None:
        self.now = START
        self.store = Store()
        self.engines: dict[str, Engine] = {}
        self.inputs = inputs or Inputs(engine_image="engine:1", vllm_image="vllm:1")
        self.config = config or Config(known_kinds=frozenset({"PodMonitor"}))
        self.gpus_free = gpus_free
        self.load_s = load_s
        self.breaks: Callable[[list[str]], tuple[str, str] | None] = lambda _: None
        self.journal: list[str] = []
        self.events: list[Event] = []
        self.rewrites: dict[str, int] = {}
        self.admin_token_digests: tuple[str, ...] = ("ab" * 32,)
        self.num_pods_made = 0
        self.name = name
        self.create(spec)

    # What people do

    def create(self, spec: Mapping[str, Any]) -> None:
        """Create the LLMDeployment, as the server fills it in."""
        uid, version = self.store.stamp()
        self.document: Object = {
            "apiVersion": llmdeployment.API_VERSION,
            "kind": llmdeployment.KIND,
            "metadata": {
                "name": self.name,
                "namespace": "models",
                "uid": uid,
                "generation": 1,
                "resourceVersion": version,
                "creationTimestamp": objects.timestamp(self.now),
            },
            "spec": {"replicas": 1, **copy.deepcopy(dict(spec))},
        }
        self.store.objects[llmdeployment.KIND, self.name] = self.document

    def edit(self, spec: Mapping[str, Any]) -> None:
        """Replace spec."""
        wanted = {"replicas": 1, **copy.deepcopy(dict(spec))}
        if wanted != self.document["spec"]:
            self.document["spec"] = wanted
            self.document["metadata"]["generation"] += 1
            self.store.touch(self.document)

    def delete(self) -> None:
        """Delete the LLMDeployment; children stay until garbage is collected."""
        del self.store.objects[llmdeployment.KIND, self.name]

    # What the operator does

    def observe(self) -> Observed:
        """What a shell would gather."""
        of_name = [
            item
            for item in self.store.objects.values()
            if objects.labels(item).get(names.DEPLOYMENT_LABEL) == self.name
        ]
        pods = [item for item in of_name if item["kind"] == "Pod"]
        return copy.deepcopy(
            Observed(
                deployment=self.document,
                children={
                    kind: tuple(item for item in of_name if item["kind"] == kind)
                    for kind in CHILD_KINDS
                },
                pods=tuple(pods),
                readings={
                    objects.name(pod): self.engines[objects.name(pod)].reading(
                        objects.uid(pod), self.now
                    )
                    for pod in pods
                    if objects.name(pod) in self.engines
                },
                inputs=self.inputs,
                config=self.config,
                admin_token_digests=self.admin_token_digests,
                rewrites=self.rewrites,
            )
        )

    def plan(self) -> Plan:
        """What the operator would do now."""
        return planning.plan(self.observe(), self.now)

    def carry_out(self, plan: Plan, *, at_most: int | None = None) -> None:
        """Do what a plan says; a refused write that later ones rely on ends it."""
        for action in plan.actions[:at_most]:
            try:
                self._do(action)
            except Refused as refused:
                if action.stops_plan or refused.code == 409:
                    return

    def reconcile(self, at_most: int | None = None) -> Plan:
        """One turn of the operator, which may be killed after so many actions."""
        plan = self.plan()
        self.carry_out(plan, at_most=at_most)
        return plan

    def settle(self, max_rounds: int = MAX_ROUNDS, *, at_most: int | None = None) -> None:
        """Until nothing is written and nothing is waited for, and the cluster is still."""
        for _ in range(max_rounds):
            before = self._fingerprint()
            plan = self.reconcile(at_most)
            self.tick()
            if not plan.actions and before == self._fingerprint():
                if plan.requeue_after_s is None:
                    return
                self.tick(plan.requeue_after_s)
        raise AssertionError(f"not settled after {max_rounds} rounds: {self.journal[-20:]}")

    # What the cluster does

    def tick(self, seconds: float = 1.0) -> None:
        """Time passes; controllers, kubelet and engines act once."""
        self.now += seconds
        for item in self.store.of_kind("Deployment"):
            self._scale(item)
        owners = {item["metadata"]["uid"] for item in self.store.of_kind("Deployment")}
        for pod in self.store.of_kind("Pod"):
            if objects.controller_uid(pod) not in owners and not objects.is_deleted(pod):
                self._end(pod)
            self._run(pod)

    def pods(self, digest: str | None = None) -> list[Object]:
        """Pods that are not being deleted."""
        return [
            pod
            for pod in self.store.of_kind("Pod")
            if not objects.is_deleted(pod)
            and digest in {None, objects.labels(pod).get(names.HASH_LABEL)}
        ]

    def shape(self) -> dict[str, Any]:
        """The end state without uids, versions, times and names of pods: for comparisons."""
        return shape.of(self.store, self.engines, self.status)

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition of the LLMDeployment."""
        found = objects.condition(self.document, kind)
        return objects.text(found, "status"), objects.text(found, "reason")

    @property
    def status(self) -> Mapping[str, Any]:
        """Of the LLMDeployment."""
        return objects.mapping(self.document, "status")

    def _fingerprint(self) -> str:
        versions = {
            f"{kind}/{name}": item["metadata"]["resourceVersion"]
            for (kind, name), item in self.store.objects.items()
        }
        states = {
            name: (engine.drain_phase, engine.is_loaded(self.now), engine.revision)
            for name, engine in self.engines.items()
        }
        return json.dumps([versions, states], sort_keys=True)

    def _do(self, action: Action) -> None:
        self.journal.append(f"{type(action).__name__} {action.target}")
        match action:
            case Apply():
                manifest = action.manifest
                if action.owner:
                    owner = self.store.objects["Deployment", action.owner]
                    manifest = settings_map.owned(manifest, owner)
                self.store.apply(
                    manifest,
                    self.config.field_manager,
                    self.now,
                    uid=action.uid,
                    resource_version=action.resource_version,
                )
            case Delete():
                self.store.delete(action.kind, action.name, action.uid)
                self.store.collect_garbage()
            case WriteStatus():
                metadata = self.document["metadata"]
                if metadata["resourceVersion"] != action.resource_version:
                    raise Refused(409, "the LLMDeployment has changed")
                self.document["status"] = copy.deepcopy(dict(action.status))
                self.store.num_writes += 1
                self.store.touch(self.document)
            case PatchSettings():
                self._engine(action.pod, action.pod_uid).patch(
                    dict(action.changes), action.revision
                )
            case DrainPod():
                self._engine(action.pod, action.pod_uid).drain(action.propagation_s, self.now)
            case AnnotatePod():
                pod = self._pod(action.pod, action.pod_uid)
                kept = pod["metadata"].setdefault("annotations", {})
                for key, value in action.annotations.items():
                    if value is None:
                        kept.pop(key, None)
                    else:
                        kept[key] = value
                self.store.num_writes += 1
                self.store.touch(pod)
            case DeletePod():
                self._end(self._pod(action.pod, action.pod_uid))
                self.store.num_writes += 1
            case Event():
                self.events.append(action)

    def _pod(self, name: str, uid: str) -> Object:
        pod = self.store.objects.get(("Pod", name))
        if pod is None or pod["metadata"]["uid"] != uid:
            raise Refused(404, f"no pod {name}")
        return pod

    def _engine(self, name: str, uid: str) -> Engine:
        self._pod(name, uid)
        return self.engines[name]

    def _scale(self, deployment: Object) -> None:
        digest = objects.labels(deployment).get(names.HASH_LABEL, "")
        uid = objects.uid(deployment)
        mine = [pod for pod in self.pods(digest) if objects.controller_uid(pod) == uid]
        wanted = deployment["spec"]["replicas"]
        for _ in range(wanted - len(mine)):
            self._make(deployment)
        for pod in sorted(mine, key=_first_to_delete)[: max(0, len(mine) - wanted)]:
            self._end(pod)

    def _make(self, deployment: Object) -> None:
        template = copy.deepcopy(deployment["spec"]["template"])
        uid, version = self.store.stamp()
        self.num_pods_made += 1
        name = f"{objects.name(deployment)}-{self.num_pods_made:05d}"
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] |= {
            "name": name,
            "namespace": "models",
            "uid": uid,
            "resourceVersion": version,
            "creationTimestamp": objects.timestamp(self.now),
            "ownerReferences": [{"uid": objects.uid(deployment), "controller": True}],
        }
        pod["status"] = {"phase": "Pending", "conditions": []}
        self.store.objects["Pod", name] = pod

    def _end(self, pod: Object) -> None:
        pod["metadata"]["deletionTimestamp"] = objects.timestamp(self.now)
        self.store.touch(pod)

    def _run(self, pod: Object) -> None:
        name = objects.name(pod)
        engine = self.engines.get(name)
        if objects.is_deleted(pod):
            if engine is not None and engine.num_requests > 0:
                engine.num_requests -= 1
                return
            del self.store.objects["Pod", name]
            if self.engines.pop(name, None) is not None and self.gpus_free is not None:
                self.gpus_free += _gpus(pod)
            return
        if engine is None:
            self._start(pod)
            return
        engine.advance(self.now)
        self._set(pod, "Ready", engine.is_ready(self.now), "")

    def _start(self, pod: Object) -> None:
        needed = _gpus(pod)
        if self.gpus_free is not None and needed > self.gpus_free:
            message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
            self._set(pod, "PodScheduled", False, "Unschedulable", message)
            return
        maps = {objects.name(item): item for item in self.store.of_kind("ConfigMap")}
        volumes = objects.items(pod, "spec", "volumes")
        mounted = [objects.text(volume, "configMap", "name") for volume in volumes]
        if any(name and name not in maps for name in mounted):
            return
        if self.gpus_free is not None:
            self.gpus_free -= needed
        self._set(pod, "PodScheduled", True, "")
        settings = [maps[name]["data"]["settings.json"] for name in mounted if name]
        recorded = json.loads(settings[0]) if settings else {"revision": 0, "settings": {}}
        arguments = pod["spec"]["containers"][0]["args"]
        engine = engines.start(arguments, recorded, gpus=needed, ready_at=self.now + self.load_s)
        engine.failure = self.breaks(arguments)
        self.engines[objects.name(pod)] = engine
        pod["status"]["phase"] = "Running"
        if engine.failure:
            reason, message = engine.failure
            ended = {"exitCode": 3, "message": f"the engine did not start: {reason}: {message}"}
            pod["status"]["containerStatuses"] = [
                {
                    "name": "engine",
                    "restartCount": 3,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": ended},
                }
            ]
        self.store.touch(pod)

    def _set(self, pod: Object, kind: str, holds: bool, reason: str, message: str = "") -> None:
        listed = pod["status"]["conditions"]
        wanted = "True" if holds else "False"
        old = next((item for item in listed if item["type"] == kind), None)
        if old is not None and old["status"] == wanted:
            return
        fresh = {
            "type": kind,
            "status": wanted,
            "reason": reason,
            "message": message,
            "lastTransitionTime": objects.timestamp(self.now),
        }
        if old is not None:
            listed.remove(old)
        listed.append(fresh)
        self.store.touch(pod)


def _first_to_delete(pod: Object) -> tuple[Any, ...]:
    """The order of the ReplicaSet controller."""
    cost = objects.annotation(pod, names.DELETION_COST_ANNOTATION)
    return (
        objects.condition(pod, "PodScheduled").get("status") == "True",
        objects.text(pod, "status", "phase") == "Running",
        objects.condition(pod, "Ready").get("status") == "True",
        int(cost or 0),
        -objects.created_at(pod),
        objects.name(pod),
    )


def _gpus(pod: Object) -> int:
    container = pod["spec"]["containers"][0]
    return int(objects.mapping(container, "resources", "limits").get("nvidia.com/gpu", 0))

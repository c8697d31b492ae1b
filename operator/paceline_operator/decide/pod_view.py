"""What decisions need of a pod, read once from its object and its engine's answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from paceline_crds.phases import DrainPhase
from paceline_crds.spec_pods import GPU_RESOURCE
from paceline_operator.decide import failures
from paceline_operator.decide.failures import Failure
from paceline_operator.decide.observed import EngineReading, Object, Observed
from paceline_operator.render import names
from paceline_operator.resources import objects


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod.

    Attributes:
        hash: of its template; empty if its label is missing.
        is_active: it counts as a replica: neither deleted nor ended.
        can_serve: requests may go there: ready for the cluster, and the engine does not deny it.
        failure: why it does not serve.
        failed_since: when its placement failed.
        retiring_since, draining_since: the operator's own marks.
        progress_at: the newest sign of progress.
        reading: of this very pod.
    """

    name: str
    uid: str
    hash: str
    is_active: bool
    is_terminating: bool
    can_serve: bool
    failure: Failure | None
    failed_since: float
    retiring_since: float | None
    draining_since: float | None
    progress_at: float
    reading: EngineReading | None

    @property
    def is_reachable(self) -> bool:
        """Whether its admin port answered."""
        return self.reading is not None and self.reading.is_reachable

    @property
    def drain_phase(self) -> str:
        """As its engine says it; SERVING if it says nothing."""
        is_told = self.reading is not None and self.reading.is_reachable
        return self.reading.drain_phase if self.reading and is_told else DrainPhase.SERVING

    @property
    def num_requests(self) -> int | None:
        """Requests in its engine, None if unknown."""
        return self.reading.num_requests if self.reading and self.reading.is_reachable else None

    @property
    def has_begun_to_drain(self) -> bool:
        """Drain is one-way."""
        return self.draining_since is not None or self.drain_phase != DrainPhase.SERVING


def views(
    observed: Observed, born: Mapping[str, float], gpu_resource: str = GPU_RESOURCE
) -> tuple[PodView, ...]:
    """The pods, by name.

    Args:
        observed: has the pods.
        born: template hash -> when its Deployment was created. A pod that is older belonged to
            another Deployment of that name, and is about to be collected.
        gpu_resource: the device that a pod may lack room for.
    """
    made = [
        _view(pod, observed, gpu_resource)
        for pod in observed.pods
        if objects.name(pod) and objects.created_at(pod) >= born.get(_hash(pod), 0.0)
    ]
    return tuple(sorted(made, key=lambda view: view.name))


def by_hash(pods: tuple[PodView, ...]) -> Mapping[str, tuple[PodView, ...]]:
    """Pods of each template."""
    found: dict[str, tuple[PodView, ...]] = {}
    for pod in pods:
        found[pod.hash] = (*found.get(pod.hash, ()), pod)
    return found


def _view(pod: Object, observed: Observed, gpu_resource: str) -> PodView:
    name, uid = objects.name(pod), objects.uid(pod)
    reading = observed.readings.get(name)
    if reading is not None and reading.pod_uid != uid:
        reading = None
    ready = objects.condition(pod, "Ready")
    scheduled = objects.condition(pod, "PodScheduled")
    is_terminating = objects.is_deleted(pod)
    is_active = not is_terminating and objects.text(pod, "status", "phase") not in {
        "Failed",
        "Succeeded",
    }
    denies = reading is not None and reading.is_reachable and not reading.is_ready
    retiring = objects.seconds(objects.annotation(pod, names.RETIRING_ANNOTATION))
    draining = objects.seconds(objects.annotation(pod, names.DRAINING_ANNOTATION))
    signs = [
        objects.created_at(pod),
        _at(ready),
        _at(scheduled) if scheduled.get("status") == "True" else 0.0,
        retiring or 0.0,
        draining or 0.0,
        objects.seconds(objects.at(pod, "metadata", "deletionTimestamp")) or 0.0,
    ]
    return PodView(
        name=name,
        uid=uid,
        hash=_hash(pod),
        is_active=is_active,
        is_terminating=is_terminating,
        can_serve=is_active and ready.get("status") == "True" and not denies,
        failure=failures.of_pod(pod, reading, observed.events, gpu_resource=gpu_resource)
        if is_active
        else None,
        failed_since=_at(scheduled) or objects.created_at(pod),
        retiring_since=retiring,
        draining_since=draining,
        progress_at=max(signs),
        reading=reading,
    )


def _hash(pod: Object) -> str:
    return objects.labels(pod).get(names.HASH_LABEL, "")


def _at(condition: Object) -> float:
    return objects.seconds(condition.get("lastTransitionTime")) or 0.0

"""How many pods each template has, and which pods go next.

`Surge` starts new pods first and never serves with fewer than wanted. `InPlace` ends old pods
first. `Auto` surges; when a new pod finds no room for a while, an old one makes room for it, so a
cluster without a spare GPU rolls out in place. Pods that do not serve go without ceremony.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from paceline_crds.spec_pods import RolloutStrategy
from paceline_operator.decide import retire
from paceline_operator.decide.actions import Action
from paceline_operator.decide.pod_view import PodView
from paceline_operator.render.waits import Waits

SURGE_PATIENCE_S = 10.0
"""How long `Auto` lets a new pod look for room before an old one goes."""


class Stage(StrEnum):
    """What the roll-out does now; reasons of the condition Progressing."""

    COMPLETE = "Complete"
    STARTING = "PodsStarting"
    ROLLING_OUT = "RollingOut"
    WAITING_FOR_IDLE = "WaitingForIdle"
    DRAINING = "Draining"
    SCALING_DOWN = "ScalingDown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Pods of one template with the count that their Deployment has now."""

    hash: str
    replicas: int
    pods: tuple[PodView, ...] = ()

    @property
    def active(self) -> tuple[PodView, ...]:
        """Pods that count as replicas."""
        return tuple(pod for pod in self.pods if pod.is_active)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is wanted of the roll-out.

    Attributes:
        can_drain: engines have a drain (runtime Paceline).
    """

    hash: str
    replicas: int
    strategy: RolloutStrategy
    waits: Waits
    can_drain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The decision.

    Attributes:
        replicas: hash -> count for its Deployment, the wanted hash included.
        finished: hashes of old Deployments without any pod left.
        actions: marks, drains and deletions of pods.
        stage: what it does now.
        requeue_after_s: when to look again even if nothing is heard.
    """

    replicas: Mapping[str, int]
    finished: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()
    stage: Stage = Stage.COMPLETE
    requeue_after_s: float | None = None


@dataclass(slots=True)
class _Steps:
    """Steps of the pods that leave or stay; mutable while they are gathered."""

    actions: list[Action] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    requeues: list[float] = field(default_factory=list)
    is_waiting_for_idle: bool = False

    def take(self, pod: PodView, step: retire.Leave, *, leaves: bool) -> None:
        self.actions += step.actions
        if leaves and step.is_done:
            self.done.add(pod.uid)
        if step.requeue_after_s is not None:
            self.requeues.append(step.requeue_after_s)
        self.is_waiting_for_idle |= step.is_waiting_for_idle


def decide(wish: Wish, groups: Iterable[Group], now: float) -> Rollout:
    """The next counts and steps."""
    by_hash = {group.hash: group for group in groups}
    wanted = by_hash.pop(wish.hash, Group(hash=wish.hash, replicas=0))
    old = sorted(by_hash.values(), key=lambda group: group.hash)
    target = _target(wish, wanted, old)
    steps = _Steps()
    leaving = _leaving_old(wish, wanted, old, now) | _surplus(wanted, target)
    for group in (wanted, *old):
        for pod in group.active:
            if pod.uid in leaving:
                step = retire.leave(pod, wish.waits, now, can_drain=wish.can_drain)
            else:
                step = retire.stay(pod, wish.waits, now)
            steps.take(pod, step, leaves=pod.uid in leaving)
    counts = {wanted.hash: max(target, _left(wanted, steps.done))}
    for group in old:
        counts[group.hash] = _left(group, steps.done)
    finished = tuple(group.hash for group in old if group.replicas == 0 and not group.pods)
    requeues = [*steps.requeues, *_patience(wish, wanted, old, now)]
    return Rollout(
        replicas=counts,
        finished=finished,
        actions=tuple(steps.actions),
        stage=_stage(wish, wanted, old, leaving, steps),
        requeue_after_s=min(requeues) if requeues else None,
    )


def surge_of(replicas: int) -> int:
    """How many pods are replaced at a time: a quarter, at least one."""
    return max(1, replicas // 4)


def visible_replicas(wish: Wish, groups: Iterable[Group]) -> int:
    """Pods that a scaler should see: never both sides of a surge."""
    new = old = 0
    for group in groups:
        if group.hash == wish.hash:
            new += len(group.active)
        else:
            old += len(group.active)
    return max(new, min(new + old, wish.replicas)) if old else new


def _target(wish: Wish, wanted: Group, old: list[Group]) -> int:
    """Count of the wanted template, before pods that still have to leave it."""
    num_old = sum(len(group.active) for group in old)
    if wish.strategy is RolloutStrategy.IN_PLACE:
        room = wish.replicas - sum(len(group.pods) for group in old)
    elif num_old:
        room = wish.replicas + surge_of(wish.replicas) - num_old
    else:
        room = wish.replicas
    target = min(wish.replicas, max(room, wanted.replicas))
    is_failing = any(pod.failure and not pod.failure.is_placement for pod in wanted.active)
    if is_failing and not any(pod.can_serve for pod in wanted.active):
        target = min(target, wanted.replicas)
    return max(0, target)


def _leaving_old(wish: Wish, wanted: Group, old: list[Group], now: float) -> set[str]:
    pods = [pod for group in old for pod in group.active]
    serving = [pod for pod in pods if pod.can_serve]
    leaving = {pod.uid for pod in pods if not pod.can_serve}
    num_ready = sum(pod.can_serve for pod in wanted.active)
    step = surge_of(wish.replicas)
    if wish.strategy is RolloutStrategy.IN_PLACE:
        missing = step
    elif wish.strategy is RolloutStrategy.AUTO:
        missing = min(step, sum(_is_stuck(pod, now) for pod in wanted.active))
    else:
        missing = 0
    keep = max(0, wish.replicas - num_ready - missing)
    first_to_go = sorted(serving, key=_order)
    leaving |= {pod.uid for pod in first_to_go[: max(0, len(serving) - keep)]}
    return leaving


def _surplus(wanted: Group, target: int) -> set[str]:
    """Pods of the wanted template beyond its count, the idlest first."""
    active = sorted(wanted.active, key=_order)
    return {pod.uid for pod in active[: max(0, len(active) - target)]}


def _order(pod: PodView) -> tuple[bool, bool, bool, int, float, str]:
    """Who goes first: what leaves already, what does not serve, the idlest, the youngest."""
    requests = pod.num_requests
    return (
        not pod.has_begun_to_drain,
        pod.can_serve,
        pod.retiring_since is None,
        1 << 30 if requests is None else requests,
        -pod.progress_at,
        pod.name,
    )


def _is_stuck(pod: PodView, now: float) -> bool:
    return (
        pod.failure is not None
        and pod.failure.is_placement
        and now - pod.failed_since >= SURGE_PATIENCE_S
    )


def _patience(wish: Wish, wanted: Group, old: list[Group], now: float) -> list[float]:
    if wish.strategy is not RolloutStrategy.AUTO or not any(group.active for group in old):
        return []
    return [
        max(1.0, pod.failed_since + SURGE_PATIENCE_S - now)
        for pod in wanted.active
        if pod.failure and pod.failure.is_placement and not _is_stuck(pod, now)
    ]


def _left(group: Group, done: set[str]) -> int:
    """Pods of a group once those that are done have gone."""
    return sum(pod.uid not in done for pod in group.active)


def _stage(wish: Wish, wanted: Group, old: list[Group], leaving: set[str], steps: _Steps) -> Stage:
    num_serving = sum(pod.can_serve for pod in wanted.active)
    has_old = any(group.active for group in old)
    if steps.is_waiting_for_idle:
        return Stage.WAITING_FOR_IDLE
    if leaving - steps.done:
        return Stage.DRAINING
    if has_old:
        return Stage.ROLLING_OUT
    if len(wanted.active) > wish.replicas:
        return Stage.SCALING_DOWN
    if num_serving < wish.replicas or any(group.replicas or group.pods for group in old):
        return Stage.STARTING if num_serving < wish.replicas else Stage.ROLLING_OUT
    return Stage.COMPLETE

"""How one pod leaves: marked, waited for until it is idle, drained in two phases, then let go.

Each step is written down at the pod before it is taken, so a killed operator goes on where it was.
The mark also makes the pod the first that its ReplicaSet deletes when the count is lowered.
"""

from dataclasses import dataclass

from paceline_crds.phases import DrainPhase
from paceline_operator.decide.actions import Action, AnnotatePod, DeletePod, DrainPod
from paceline_operator.decide.pod_view import PodView
from paceline_operator.render import names
from paceline_operator.render.waits import Waits
from paceline_operator.resources import objects

DELETION_COST = "-1000"
_POLL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """The next step of a pod that leaves.

    Attributes:
        is_done: the count may be lowered for it.
        is_waiting_for_idle: it still has requests and time.
        requeue_after_s: when to look again.
    """

    actions: tuple[Action, ...] = ()
    is_done: bool = False
    is_waiting_for_idle: bool = False
    requeue_after_s: float | None = None


def leave(pod: PodView, waits: Waits, now: float, *, can_drain: bool) -> Leave:
    """The next step for a pod that is to go.

    Args:
        pod: an active pod.
        waits: of its deployment.
        now: seconds since the epoch.
        can_drain: its engine has a drain (runtime Paceline); else its own SIGTERM must do.
    """
    if not pod.can_serve and not pod.has_begun_to_drain:
        return Leave(is_done=True)
    if pod.has_begun_to_drain:
        return _go_on_draining(pod, waits, now)
    since = pod.retiring_since
    waited_s = 0.0 if since is None else now - since
    is_idle = pod.num_requests == 0 or pod.num_requests is None
    must_wait = can_drain and not is_idle and waited_s < waits.idle_timeout_s
    if must_wait:
        left_s = waits.idle_timeout_s - waited_s
        return Leave(
            actions=() if since is not None else (_mark(pod, now),),
            is_waiting_for_idle=True,
            requeue_after_s=min(_POLL_S, left_s),
        )
    if not (can_drain and pod.is_reachable):
        # Nobody to ask: the mark picks the pod, and its SIGTERM goes through both phases alone.
        actions = () if since is not None else (_mark(pod, now),)
        return Leave(actions=actions, is_done=True)
    drain = DrainPod(pod=pod.name, pod_uid=pod.uid, propagation_s=waits.propagation_s)
    return Leave(actions=(_mark(pod, now, draining=True), drain), requeue_after_s=_POLL_S)


def stay(pod: PodView, waits: Waits, now: float) -> Leave:
    """The next step for a pod that is wanted again: drained ones are replaced, marks go."""
    if pod.has_begun_to_drain:
        step = _go_on_draining(pod, waits, now)
        if not step.is_done:
            return step
        return Leave(actions=(DeletePod(pod=pod.name, pod_uid=pod.uid),))
    if pod.retiring_since is None:
        return Leave()
    gone = {names.RETIRING_ANNOTATION: None, names.DELETION_COST_ANNOTATION: None}
    return Leave(actions=(AnnotatePod(pod=pod.name, pod_uid=pod.uid, annotations=gone),))


def _go_on_draining(pod: PodView, waits: Waits, now: float) -> Leave:
    if pod.drain_phase == DrainPhase.DRAINED:
        return Leave(is_done=True)
    since = pod.draining_since
    if since is None:
        # Somebody else began it: write down when we saw it, so that the wait has an end.
        return Leave(actions=(_mark(pod, now, draining=True),), requeue_after_s=_POLL_S)
    left_s = since + waits.propagation_s + waits.shutdown_s - now
    if left_s <= 0:
        return Leave(is_done=True)
    again: tuple[Action, ...] = ()
    if pod.is_reachable and pod.drain_phase == DrainPhase.SERVING:
        again = (DrainPod(pod=pod.name, pod_uid=pod.uid, propagation_s=waits.propagation_s),)
    return Leave(actions=again, requeue_after_s=min(_POLL_S, left_s))


def _mark(pod: PodView, now: float, *, draining: bool = False) -> AnnotatePod:
    stamp = objects.timestamp(now)
    marks: dict[str, str | None] = {names.DELETION_COST_ANNOTATION: DELETION_COST}
    if pod.retiring_since is None:
        marks[names.RETIRING_ANNOTATION] = stamp
    if draining:
        marks[names.DRAINING_ANNOTATION] = stamp
    return AnnotatePod(pod=pod.name, pod_uid=pod.uid, annotations=marks)

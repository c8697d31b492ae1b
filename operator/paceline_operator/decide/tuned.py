"""The tuner's turn within a reconcile: from what is observed to its next memory in status."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline_crds.settings import border_name
from paceline_crds.spec import Runtime
from paceline_operator.decide.actions import Event
from paceline_operator.decide.case import Case
from paceline_operator.decide.observed import Object, Observed
from paceline_operator.decide.pod_view import PodView
from paceline_operator.decide.reasons import Reason
from paceline_operator.decide.settings_push import Push
from paceline_operator.decide.tuning import asking, codec, dials, machine, policy, verdict
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.observation import Fleet, Note, Observation
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.state import Mood, State
from paceline_operator.render import vllm
from paceline_operator.resources import objects
from paceline_operator.resources.parse import Parsed

APPROVE = "paceline.dev/approve"
REJECT = "paceline.dev/reject"
FREEZE = "paceline.dev/freeze"
_NO = frozenset({"", "false", "False", "no"})
_BUSY_S = 2.0
"""How soon to look again while pods take a change up or give it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What came of the turn.

    Attributes:
        status: `status.tuning` as it should read; it has to be written before anything else.
        is_moved: the overlay has changed, so that settings have to be computed anew.
        look_again_s: when a window can be read, or a change may have gone on.
    """

    state: State
    policy: Policy
    status: Mapping[str, Any]
    events: tuple[Event, ...]
    is_moved: bool
    look_again_s: float | None


def turn(
    observed: Observed,
    parsed: Parsed,
    case: Case,
    views: Sequence[PodView],
    push: Push | None,
    now: float,
) -> Tuned:
    """One step of the machine.

    Args:
        observed: annotations, and what Prometheus said.
        parsed: spec.
        case: with the overlay that status has now.
        views: pods.
        push: what engines would be told with that overlay.
        now: seconds since the epoch.
    """
    before = _remembered(observed.deployment, case)
    spec = parsed.deployment.spec
    rules = policy.of_spec(spec)
    seen = Observation(
        policy=rules,
        dials=_dials(parsed, case, views),
        fleet=_fleet(observed, case, views, push),
        samples=observed.measured.samples,
        fingerprint=asking.fingerprint(objects.mapping(observed.deployment, "spec")),
        overlay_kept=frozenset(item.name for item in case.wanted.kept)
        if case.wanted
        else frozenset(),
        lack_of_metrics=observed.measured.lack,
        lack_text=observed.measured.text,
        is_paused=bool(spec.paused),
        is_frozen=objects.annotation(observed.deployment, FREEZE) not in _NO,
        is_operator_frozen=observed.config.is_tuning_frozen,
        may_start=observed.num_changing < observed.config.max_changing,
        approve=objects.annotation(observed.deployment, APPROVE),
        reject=objects.annotation(observed.deployment, REJECT),
    )
    after, notes = machine.step(before, seen, now)
    return Tuned(
        state=after,
        policy=rules,
        status=codec.encode(after),
        events=tuple(_event(note, case.identity.name) for note in notes),
        is_moved=after.overlay != before.overlay,
        look_again_s=_look_again(after, seen, now),
    )


def recent(state: State) -> Arm:
    """The newest measurement that says enough."""
    growing = state.growing
    return growing if growing.windows >= verdict.MIN_WINDOWS else state.baseline


def _remembered(document: Object, case: Case) -> State:
    """The state in status. A lost one begins anew, with what the pods' template still knows."""
    status = objects.at(document, "status", "tuning")
    if isinstance(status, Mapping):
        return codec.decode(status)
    return replace(State(), overlay=case.wanted.kept if case.wanted else ())


def _dials(parsed: Parsed, case: Case, views: Sequence[PodView]) -> dials.Dials:
    said: Mapping[str, Any] = {}
    for view in views:
        if view.hash == case.hash and view.reading and view.reading.settings:
            said = view.reading.settings
            break
    wanted = case.wanted.settings if case.wanted else parsed.base.settings
    made = dials.of(parsed.deployment.spec, parsed.base, wanted, said)
    if parsed.deployment.spec.runtime is Runtime.VLLM:
        # Stock vLLM takes every setting at its start alone, and has no word for some of ours.
        known = {border_name(name) for name in vllm.TAKES}
        return {
            name: replace(dial, change=dials.RESTART)
            for name, dial in made.items()
            if name in known
        }
    return made


def _fleet(observed: Observed, case: Case, views: Sequence[PodView], push: Push | None) -> Fleet:
    mine = [view for view in views if view.is_active and view.hash == case.hash]
    names = {view.name for view in mine}
    others = [view for view in views if view.is_active and view.hash != case.hash]
    statuses = [
        status
        for pod in observed.pods
        if objects.name(pod) in names
        for status in objects.items(pod, "status", "containerStatuses")
    ]
    is_agreed = push is None or bool(
        push.num_agreed and not push.pending and not push.unreachable and not push.is_new
    )
    return Fleet(
        replicas=case.replicas,
        num_pods=len(mine),
        num_ready=sum(view.can_serve for view in mine),
        num_others=sum(view.can_serve for view in others),
        is_rolling_out=bool(others) or case.template is None,
        is_agreed=is_agreed,
        crashes=sum(objects.whole(status, "restartCount") for status in statuses),
        is_out_of_memory=any(
            objects.text(status, "lastState", "terminated", "reason") == "OOMKilled"
            for status in statuses
        ),
    )


def _look_again(state: State, seen: Observation, now: float) -> float | None:
    if state.mood == Mood.OFF or seen.lack_of_metrics == Reason.NOT_CONFIGURED:
        return None
    soon = asking.next_look_s(seen.policy, now) + 1.0
    if seen.lack_of_metrics:
        soon = min(soon, max(5.0, seen.policy.scrape_s))
    return min(soon, _BUSY_S) if state.mood in {"Applying", "RollingBack"} else soon


def _event(note: Note, name: str) -> Event:
    asks = ""
    if note.asks_for:
        asks = (
            f"; to apply it: kubectl annotate --overwrite llmdep {name} {APPROVE}={note.asks_for}"
        )
    return Event(
        type="Warning" if note.is_bad else "Normal",
        reason=note.reason,
        message=note.message + asks,
    )

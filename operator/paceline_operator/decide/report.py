"""What a reconcile tells people: status and events, from the decisions of the round."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline_crds import crd, llmdeployment
from paceline_crds.knob import ChangeClass
from paceline_crds.phases import StartupPhase
from paceline_crds.settings import border_names
from paceline_crds.source import Source
from paceline_crds.spec import value_at
from paceline_operator.decide import (
    conditions,
    failures,
    measuring,
    rollout,
    status,
    transitions,
)
from paceline_operator.decide.actions import Event
from paceline_operator.decide.case import Case
from paceline_operator.decide.conditions import Facts
from paceline_operator.decide.failures import Failure, FailureReason
from paceline_operator.decide.observed import Object, Observed
from paceline_operator.decide.pod_view import PodView
from paceline_operator.decide.reasons import Reason
from paceline_operator.decide.rollout import Group, Rollout, Stage, Wish
from paceline_operator.decide.settings_push import AGREEMENT_S, Agreement, Push
from paceline_operator.decide.status import Counts, Report
from paceline_operator.decide.tuned import Tuned
from paceline_operator.render import inputs, names, network
from paceline_operator.resources import objects

_PATIENT = frozenset({Stage.COMPLETE, Stage.WAITING_FOR_IDLE, Stage.DRAINING})
"""Stages whose length is bounded by time-outs of their own."""
_ENOUGH_TRIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Status as it should read, events for what has changed, and when to look again."""

    status: dict[str, Any]
    events: tuple[Event, ...]
    requeue_after_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The decisions of one reconcile.

    Attributes:
        deployment: the child of the wanted template, None before it is made.
        foreign, contended: children of others, and ours that others fight for.
        missing: needed children that this round writes for the first time.
    """

    observed: Observed
    case: Case
    views: tuple[PodView, ...]
    groups: tuple[Group, ...]
    wish: Wish
    rolled: Rollout
    push: Push | None
    foreign: tuple[str, ...]
    contended: tuple[str, ...]
    missing: tuple[str, ...]
    deployment: Object | None
    turned: Tuned | None = None

    def tell(self, now: float) -> Told:
        """Put it into words."""
        before = objects.mapping(self.observed.deployment, "status")
        effective = self._effective(before, now)
        facts = self._facts(effective, before, now)
        made = conditions.verdicts(facts)
        old = objects.items(before, "conditions")
        generation = self.case.identity.generation
        listed = transitions.as_status(made, old, generation, now)
        body = status.build(self._report(effective), listed, before)
        told = self.turned.events if self.turned else ()
        events = (*transitions.events(made, old), *self._dropped(), *told)
        return Told(status=body, events=events, requeue_after_s=self._again(facts, effective, now))

    def _facts(
        self, effective: list[dict[str, Any]] | None, before: Mapping[str, Any], now: float
    ) -> Facts:
        case, mine = self.case, self._wanted()
        num_ready = sum(self._is_ready(pod) for pod in mine)
        failure = self._failure(mine, num_ready)
        agreement = Agreement.NOBODY
        if self.push is not None:
            entries = objects.items(before, "effective") if effective is None else effective
            agreement = self.push.agreement(status.newest(_live(entries)), now)
        spec = case.spec
        return Facts(
            refusal=case.refusal,
            is_paused=spec is not None and bool(spec.paused),
            waiting_for=self.foreign,
            is_adopted=case.is_adopted,
            replicas=case.replicas,
            num_pods=len(mine),
            num_ready=num_ready,
            num_serving=sum(pod.can_serve for pod in self.views),
            num_old=sum(pod.is_active for pod in self.views) - len(mine),
            stage=self.rolled.stage,
            agreement=agreement,
            has_settings_api=self.push is not None,
            revision=self.push.revision if self.push else 0,
            unsettled=self.push.pending if self.push else (),
            unreachable=self.push.unreachable if self.push else (),
            failure=failure,
            is_overdue=self._is_overdue(mine, failure, now),
            progress_deadline_s=case.waits.progress_deadline_s,
            wrong_model=self._wrong_model(mine),
            model_name=case.model_name,
            model_phase=_furthest(mine),
            measured=measuring.facts(self.turned, self.observed.measured),
            contended=self.contended,
            missing=self.missing,
            missing_kinds=self._missing_kinds(),
            schema_version=self.observed.config.schema_version,
            unknown_fields=self._unknown_fields(),
        )

    def _missing_kinds(self) -> tuple[str, ...]:
        """A PodMonitor is written where it can be; only one that spec turns on is missed."""
        spec, known = self.case.spec, self.observed.config.known_kinds
        asked = {
            "PodMonitor": spec is not None and value_at(spec, "monitoring.podMonitor.enabled"),
            "InferencePool": spec is not None and value_at(spec, "gateway.inferencePool"),
        }
        return tuple(kind for kind, is_asked in asked.items() if is_asked and kind not in known)

    def _unknown_fields(self) -> tuple[str, ...]:
        """Fields of spec that a newer definition has and this operator does not know.

        Looked for under a newer definition alone, since every other prunes them.
        """
        served = self.observed.config.schema_version
        if self.case.spec is None or served is None or served <= crd.SCHEMA_VERSION:
            return ()
        return llmdeployment.unknown_fields(dict(self.observed.deployment))

    def _wanted(self) -> tuple[PodView, ...]:
        return tuple(pod for pod in self.views if pod.is_active and pod.hash == self.case.hash)

    def _is_ready(self, pod: PodView) -> bool:
        """Ready as the condition asks for it; a user's API key is never needed."""
        if not pod.can_serve:
            return False
        if self.push is None:
            return pod.reading is None or pod.reading.model in {"", self.case.model_name}
        reading = pod.reading
        if reading is None or not reading.is_reachable or not reading.is_ready:
            return False
        return reading.model == self.case.model_name or not self.case.model_name

    def _wrong_model(self, mine: tuple[PodView, ...]) -> str:
        for pod in mine:
            if pod.can_serve and pod.reading and pod.reading.is_reachable:
                model = pod.reading.model
                if model and self.case.model_name and model != self.case.model_name:
                    return model
        return ""

    def _failure(self, mine: tuple[PodView, ...], num_ready: int) -> Failure | None:
        """The first thing that speaks against the wanted pods: themselves, then the cluster."""
        found = [
            replace(pod.failure, message=f"{pod.name}: {pod.failure.message}")
            for pod in mine
            if pod.failure is not None
        ]
        if found and num_ready < self.case.replicas:
            return min(found, key=lambda failure: failure.is_placement)
        refused = failures.of_deployment(self.deployment) if self.deployment else None
        if refused is not None:
            return refused
        for failed in self.observed.failures:
            told = failures.of_write(failed)
            is_plain = told.reason in {
                FailureReason.QUOTA_EXCEEDED,
                FailureReason.NAMESPACE_TERMINATING,
            }
            if is_plain or failed.times >= _ENOUGH_TRIES:
                return told
        return None

    def _is_overdue(self, mine: tuple[PodView, ...], failure: Failure | None, now: float) -> bool:
        if self.rolled.stage in _PATIENT or self.deployment is None:
            return False
        is_being_made = len(mine) < self.case.replicas and failure is None
        return not is_being_made and now - self._moved_at() > self.case.waits.progress_deadline_s

    def _moved_at(self) -> float:
        """The newest sign of progress."""
        made_at = objects.created_at(self.deployment) if self.deployment else 0.0
        return max([made_at, *(pod.progress_at for pod in self.views)])

    def _report(self, effective: list[dict[str, Any]] | None) -> Report:
        case, mine = self.case, self._wanted()
        annotation = (
            objects.annotation(self.deployment, names.INPUTS_ANNOTATION) if self.deployment else ""
        )
        template = case.template
        version = template.inputs.template_version if template else inputs.version_of(annotation)
        body = template.body if template else objects.mapping(self.deployment, "spec", "template")
        containers = objects.items(body, "spec", "containers")
        revision = None
        if self.push is not None:
            revision = {"wanted": self.push.revision, "applied": self.push.applied}
        return Report(
            generation=case.identity.generation,
            counts=Counts(
                replicas=rollout.visible_replicas(self.wish, self.groups),
                ready=sum(pod.can_serve for pod in mine),
                updated=len(mine),
                available=sum(pod.can_serve for pod in self.views),
            ),
            selector=names.as_text(names.pod_selector(case.identity.name)),
            endpoint=network.endpoint(case.identity, case.spec) if case.spec else None,
            image=objects.text(containers[0], "image") if containers else None,
            wanted_hash=case.hash or None,
            template_version=version or None,
            revision=revision,
            effective=effective,
            measured=status.measured(mine),
            tuning=self.turned.status if self.turned else None,
        )

    def _effective(self, before: Mapping[str, Any], now: float) -> list[dict[str, Any]] | None:
        if self.case.wanted is None:
            return None
        return status.effective(
            self.case.wanted,
            self.case.in_template,
            self._wanted(),
            objects.items(before, "effective"),
            now,
            self.case.engine_decided,
        )

    def _dropped(self) -> list[Event]:
        dropped = self.case.wanted.dropped if self.case.wanted else ()
        return [
            Event(
                type="Normal",
                reason=Reason.OVERLAY_DROPPED,
                message=f"the tuner's {item.entry.name} = {item.entry.value} no longer holds: "
                f"{item.reason}",
            )
            for item in dropped
        ]

    def _again(
        self, facts: Facts, effective: list[dict[str, Any]] | None, now: float
    ) -> float | None:
        """When a verdict changes by time alone."""
        waits = []
        if facts.agreement is Agreement.PENDING:
            waits.append(status.newest(_live(effective or [])) + AGREEMENT_S - now)
        if self.rolled.stage not in _PATIENT and not facts.is_overdue and self.deployment:
            waits.append(self._moved_at() + self.case.waits.progress_deadline_s - now)
        return max(1.0, min(waits) + 1.0) if waits else None


def _live(entries: list[Any]) -> list[Any]:
    """Entries of settings that are pushed."""
    return [
        item
        for item in entries
        if item.get("name") in border_names(ChangeClass.LIVE)
        and item.get("source") != Source.ENGINE.value
    ]


def _furthest(pods: tuple[PodView, ...]) -> str:
    """The phase of the pod whose start is furthest; empty if nobody tells."""
    seen = [pod.reading.phase for pod in pods if pod.reading and pod.reading.is_reachable]
    known = [phase for phase in StartupPhase if phase in seen and phase is not StartupPhase.FAILED]
    return known[-1] if known else ""

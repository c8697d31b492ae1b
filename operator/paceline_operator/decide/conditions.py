"""The conditions, each from one value that also gives its event and its line in the log.

What status and events make of them stands in `transitions.py`. A verdict is made from facts alone;
nothing here looks at objects of the API.
"""

from dataclasses import dataclass

from paceline_crds import crd
from paceline_crds.phases import StartupPhase
from paceline_crds.status import ConditionStatus, ConditionType
from paceline_operator.decide.failures import Failure, FailureReason
from paceline_operator.decide.reasons import Reason
from paceline_operator.decide.rollout import Stage
from paceline_operator.decide.settings_push import Agreement

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
C = ConditionType


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One condition. `is_bad` makes its event a warning."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str = ""
    is_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a spec cannot be served as it is."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What conditions are made from.

    Attributes:
        replicas: wanted.
        num_pods, num_ready: of the wanted template; ready is what Ready asks for.
        num_serving: of all templates.
        num_old: pods of old templates.
        stage, agreement: of roll-out and settings.
        failure: the first thing that speaks against the wanted pods.
        unsettled: names of counted pods that answer and have other settings.
        unreachable: names of counted pods whose admin port does not answer.
        is_overdue: no progress for longer than `progress_deadline_s`.
        wrong_model: a name that an engine gave instead of the wanted one.
        model_phase: phase of the start that is furthest, empty if unknown.
        contended: `Kind/name` of what we write and somebody else keeps changing.
        measured: MetricsAvailable, SLOMet and TuningActive; empty where spec cannot be served.
        missing: `Kind/name` of children that serving needs and that are not there yet.
        missing_kinds: kinds that spec asks for and this cluster does not know.
        schema_version: of the LLMDeployments that this cluster serves; None if it does not tell.
        unknown_fields: of spec, which a newer definition has and this operator does not know.
        waiting_for: `Kind/name` of children of another owner.
        is_adopted: the template is left as it stands.
    """

    refusal: Refusal | None = None
    is_paused: bool = False
    waiting_for: tuple[str, ...] = ()
    is_adopted: bool = False
    replicas: int = 0
    num_pods: int = 0
    num_ready: int = 0
    num_serving: int = 0
    num_old: int = 0
    stage: Stage = Stage.COMPLETE
    agreement: Agreement = Agreement.NOBODY
    has_settings_api: bool = True
    revision: int = 0
    unsettled: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    failure: Failure | None = None
    is_overdue: bool = False
    progress_deadline_s: int = 0
    wrong_model: str = ""
    model_name: str = ""
    model_phase: str = ""
    measured: tuple[Verdict, ...] = ()
    contended: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    missing_kinds: tuple[str, ...] = ()
    schema_version: int | None = None
    unknown_fields: tuple[str, ...] = ()


def verdicts(facts: Facts) -> tuple[Verdict, ...]:
    """Every condition; the two of kstatus only while true."""
    made = [
        _ready(facts),
        _available(facts),
        _progressing(facts),
        _config_valid(facts),
        _model_cached(facts),
        *(facts.measured or _not_measured()),
        _degraded(facts),
    ]
    return (*made, *_kstatus(made, facts))


def _ready(facts: Facts) -> Verdict:
    def verdict(
        status: ConditionStatus, reason: str, message: str, *, is_bad: bool = False
    ) -> Verdict:
        return Verdict(type=C.READY, status=status, reason=reason, message=message, is_bad=is_bad)

    if facts.refusal:
        return verdict(FALSE, facts.refusal.reason, facts.refusal.message, is_bad=True)
    if facts.waiting_for:
        return verdict(FALSE, Reason.WAITING_FOR_OLD_CHILDREN, _waiting(facts))
    if facts.replicas == 0:
        if facts.num_pods or facts.num_old:
            return verdict(FALSE, Stage.SCALING_DOWN, "the last pods are ending")
        return _pending(facts) or verdict(TRUE, Reason.SCALED_TO_ZERO, "no pod is wanted")
    if facts.num_ready < facts.replicas:
        if facts.failure:
            message = f"{_count(facts)}: {facts.failure.message}"
            return verdict(FALSE, facts.failure.reason, message, is_bad=True)
        if facts.wrong_model:
            return verdict(
                FALSE,
                Reason.WRONG_MODEL,
                f"an engine serves {facts.wrong_model!r}, {facts.model_name!r} was expected; set "
                "model.servedName instead of a flag in extraArgs",
                is_bad=True,
            )
        if facts.agreement is Agreement.UNREACHABLE:
            return verdict(
                UNKNOWN,
                Agreement.UNREACHABLE,
                f"the admin port of {_named(facts.unreachable)} does not answer, although the "
                "cluster calls them ready; check the NetworkPolicy, or the port-forward of an "
                "operator outside of the cluster",
                is_bad=True,
            )
        return verdict(FALSE, Reason.PODS_NOT_READY, _count(facts) + _phase(facts))
    if facts.has_settings_api and facts.agreement is not Agreement.AGREED:
        late = _named((*facts.unsettled, *facts.unreachable)) or "any pod"
        message = f"revision {facts.revision} of the settings is not in force on {late}"
        is_bad = facts.agreement is Agreement.OVERDUE
        return verdict(FALSE, facts.agreement, message, is_bad=is_bad)
    served = f"{facts.num_ready} pods serve {facts.model_name}"
    return _pending(facts) or verdict(TRUE, Reason.ALL_PODS_READY, served)


def _pending(facts: Facts) -> Verdict | None:
    """Why nobody is served although nothing is wrong with pods: a child is not there."""
    if not facts.missing:
        return None
    if facts.failure:
        reason, message = facts.failure.reason, facts.failure.message
        return Verdict(type=C.READY, status=FALSE, reason=reason, message=message, is_bad=True)
    # Without names, which change while children come: each change would be a write of status.
    message = "not all of Deployment, ConfigMap and Service are there"
    return Verdict(type=C.READY, status=FALSE, reason=Reason.CHILDREN_PENDING, message=message)


def _available(facts: Facts) -> Verdict:
    if facts.num_serving:
        return Verdict(
            type=C.AVAILABLE,
            status=TRUE,
            reason=Reason.SERVING,
            message=f"{facts.num_serving} pods can serve",
        )
    reason = Reason.NO_POD_READY if facts.replicas or facts.refusal else Reason.SCALED_TO_ZERO
    why = f": {facts.failure.message}" if facts.failure else ""
    return Verdict(type=C.AVAILABLE, status=FALSE, reason=reason, message=f"no pod can serve{why}")


def _progressing(facts: Facts) -> Verdict:
    def verdict(
        status: ConditionStatus, reason: str, message: str, *, is_bad: bool = False
    ) -> Verdict:
        return Verdict(
            type=C.PROGRESSING, status=status, reason=reason, message=message, is_bad=is_bad
        )

    if facts.is_paused:
        return verdict(UNKNOWN, Reason.PAUSED, "spec.paused is true: nothing but status is written")
    if facts.refusal:
        return verdict(FALSE, facts.refusal.reason, facts.refusal.message, is_bad=True)
    if facts.waiting_for:
        return verdict(TRUE, Reason.WAITING_FOR_OLD_CHILDREN, _waiting(facts))
    if facts.stage is Stage.COMPLETE:
        return verdict(TRUE, Stage.COMPLETE, "every pod has the wanted template")
    if facts.failure:
        status = FALSE if facts.is_overdue else TRUE
        return verdict(status, facts.failure.reason, facts.failure.message, is_bad=True)
    count = _count(facts) + _phase(facts)
    if facts.is_overdue:
        message = (
            f"{count}, and nothing has moved for longer than rollout.progressDeadline "
            f"({facts.progress_deadline_s} s)"
        )
        return verdict(FALSE, Reason.PROGRESS_DEADLINE, message, is_bad=True)
    old = f"; {facts.num_old} of an old one are left" if facts.num_old else ""
    return verdict(TRUE, facts.stage, f"{count}{old}")


def _count(facts: Facts) -> str:
    return f"{facts.num_ready} of {facts.replicas} pods of the wanted template are ready"


def _phase(facts: Facts) -> str:
    """How far the start of a pod has come, where an engine tells it."""
    if facts.model_phase in {"", StartupPhase.READY}:
        return ""
    return f"; the start that is furthest is at {facts.model_phase}"


def _named(names: tuple[str, ...]) -> str:
    """Names, not too many."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _config_valid(facts: Facts) -> Verdict:
    if facts.refusal:
        return Verdict(
            type=C.CONFIG_VALID,
            status=FALSE,
            reason=facts.refusal.reason,
            message=facts.refusal.message,
            is_bad=True,
        )
    return Verdict(
        type=C.CONFIG_VALID, status=TRUE, reason=Reason.VALID, message="spec can be served"
    )


_MAX_NAMED = 5
_NOT_FETCHED = frozenset({FailureReason.DOWNLOAD_FAILED, FailureReason.AUTH_FAILED})
_FETCHING = frozenset({StartupPhase.FETCHING, StartupPhase.CONVERTING})
_FETCHED = frozenset(
    {StartupPhase.LOADING, StartupPhase.MEASURING, StartupPhase.PLANNING, StartupPhase.READY}
)


def _model_cached(facts: Facts) -> Verdict:
    def verdict(status: ConditionStatus, reason: str, message: str) -> Verdict:
        return Verdict(type=C.MODEL_CACHED, status=status, reason=reason, message=message)

    if facts.failure and facts.failure.reason in _NOT_FETCHED:
        return verdict(FALSE, facts.failure.reason, facts.failure.message)
    if facts.model_phase in _FETCHED or facts.num_ready:
        return verdict(TRUE, Reason.CACHED, "the model's files are there")
    if facts.model_phase in _FETCHING:
        return verdict(FALSE, Reason.FETCHING, "the model's files are on their way")
    if facts.num_pods:
        return verdict(UNKNOWN, Reason.NOT_STARTED, "no pod has told how far its start is")
    return verdict(UNKNOWN, Reason.NOT_STARTED, "there is no pod of the wanted template yet")


def _not_measured() -> tuple[Verdict, ...]:
    message = "spec cannot be served, so nothing is measured"
    return tuple(
        Verdict(type=kind, status=UNKNOWN, reason=Reason.NOT_EVALUATED, message=message)
        for kind in (C.METRICS_AVAILABLE, C.SLO_MET, C.TUNING_ACTIVE)
    )


def _degraded(facts: Facts) -> Verdict:
    def bad(reason: str, message: str) -> Verdict:
        return Verdict(type=C.DEGRADED, status=TRUE, reason=reason, message=message, is_bad=True)

    if facts.failure:
        return bad(facts.failure.reason, facts.failure.message)
    if facts.contended:
        return bad(
            Reason.CHILD_CONTENDED,
            f"somebody else keeps changing {', '.join(facts.contended)}, which this operator "
            "writes; it is left alone until that ends. `kubectl get --show-managed-fields -o yaml` "
            "names the other manager; where that is paceline-operator too, a second install takes "
            "this LLMDeployment: give each an `instance` or namespaces of its own",
        )
    if facts.missing_kinds:
        return bad(
            Reason.KIND_MISSING,
            f"spec asks for {', '.join(facts.missing_kinds)}, which this cluster does not know; "
            "install its CustomResourceDefinition or take it out of spec",
        )
    if facts.is_adopted:
        return bad(
            Reason.TEMPLATE_VERSION_UNKNOWN,
            "the pods were made by another version of the operator, which this one cannot render; "
            "replicas and settings are managed, the template is left alone; run the version that "
            "made them, or delete their Deployment to have them made anew",
        )
    if facts.schema_version is not None and facts.schema_version < crd.SCHEMA_VERSION:
        return bad(Reason.DEFINITION_OLDER, definition_is_older(facts.schema_version))
    if facts.unknown_fields:
        return bad(
            Reason.DEFINITION_NEWER,
            f"this operator does not know {_named(facts.unknown_fields)}: the "
            f"CustomResourceDefinition has schema version {facts.schema_version}, the operator "
            f"{crd.SCHEMA_VERSION}; the rest of spec holds, these have no effect; upgrade the "
            "operator, or take them out of spec",
        )
    return Verdict(
        type=C.DEGRADED, status=FALSE, reason=Reason.AS_EXPECTED, message="no failure is known"
    )


def definition_is_older(served: int) -> str:
    """What is wrong with a definition that this operator is newer than, and what to do."""
    return (
        "the CustomResourceDefinition of LLMDeployment in this cluster has schema version "
        f"{served}, this operator needs {crd.SCHEMA_VERSION}: newer fields of spec are refused "
        "and those of status are lost; upgrade the release with crds.enabled, or apply "
        "crds/llmdeployments.paceline.dev.yaml"
    )


def _kstatus(made: list[Verdict], facts: Facts) -> list[Verdict]:
    by_type = {verdict.type: verdict for verdict in made}
    progressing, ready = by_type[C.PROGRESSING], by_type[C.READY]
    if progressing.status is FALSE:
        return [_copy(progressing, C.STALLED)]
    if facts.is_paused:
        return []
    if progressing.reason != Stage.COMPLETE:
        return [_copy(progressing, C.RECONCILING)]
    if ready.status is not TRUE:
        return [_copy(ready, C.RECONCILING)]
    return []


def _copy(verdict: Verdict, kind: ConditionType) -> Verdict:
    return Verdict(type=kind, status=TRUE, reason=verdict.reason, message=verdict.message)


def _waiting(facts: Facts) -> str:
    return (
        "children of a deleted LLMDeployment of this name, or of another install, have to go "
        f"first: {_named(facts.waiting_for)}"
    )

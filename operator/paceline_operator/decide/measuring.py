"""The conditions that measurements give: MetricsAvailable, SLOMet, TuningActive."""

from paceline_crds.status import ConditionStatus, ConditionType
from paceline_operator.decide import tuned
from paceline_operator.decide.conditions import Verdict
from paceline_operator.decide.observed import Measured
from paceline_operator.decide.reasons import Reason
from paceline_operator.decide.tuned import Tuned
from paceline_operator.decide.tuning import guards
from paceline_operator.decide.tuning.signals import Problem
from paceline_operator.decide.tuning.state import Mood

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


def facts(turned: Tuned | None, measured: Measured) -> tuple[Verdict, ...]:
    """The three, from the tuner's turn; none if it had no turn."""
    if turned is None:
        return ()
    return _metrics(turned, measured), _slo(turned), _tuning(turned, measured)


def _metrics(turned: Tuned, measured: Measured) -> Verdict:
    def verdict(
        status: ConditionStatus, reason: str, message: str, *, is_bad: bool = False
    ) -> Verdict:
        return Verdict(
            type=ConditionType.METRICS_AVAILABLE,
            status=status,
            reason=reason,
            message=message,
            is_bad=is_bad,
        )

    state = turned.state
    if measured.lack == Reason.NOT_CONFIGURED:
        return verdict(UNKNOWN, Reason.NOT_CONFIGURED, measured.text)
    if state.mood == Mood.OFF:
        return verdict(UNKNOWN, Reason.NOT_EVALUATED, "tuning.mode is Off, so nothing is measured")
    if measured.lack:
        return verdict(FALSE, measured.lack, measured.text, is_bad=True)
    if state.lack == Problem.NO_PODS:
        return verdict(UNKNOWN, state.lack, guards.LACKS[Problem.NO_PODS])
    if state.lack:
        return verdict(FALSE, state.lack, guards.LACKS[Problem(state.lack)], is_bad=True)
    if not state.seen_until:
        return verdict(UNKNOWN, Reason.NOT_EVALUATED, "the first measurement has not ended")
    return verdict(TRUE, Reason.MEASURED, f"every {turned.policy.window_s} s")


def _slo(turned: Tuned) -> Verdict:
    def verdict(status: ConditionStatus, reason: str, message: str) -> Verdict:
        return Verdict(type=ConditionType.SLO_MET, status=status, reason=reason, message=message)

    targets = turned.policy.targets
    if not targets:
        return verdict(UNKNOWN, Reason.NO_TARGET, "spec.slo gives no target")
    arm = tuned.recent(turned.state)
    shares = {name: arm.attainment(name) for name in targets}
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return verdict(UNKNOWN, Reason.NOT_EVALUATED, "no measurement says enough so far")
    told = ", ".join(f"{name} {share:.1%}" for name, share in known.items())
    missed = [name for name, share in known.items() if share < targets[name].attainment]
    if missed:
        return verdict(FALSE, Reason.TARGET_MISSED, f"requests within their target: {told}")
    return verdict(TRUE, Reason.TARGETS_MET, f"requests within their target: {told}")


def _tuning(turned: Tuned, measured: Measured) -> Verdict:
    state = turned.state
    is_active = state.mood not in {Mood.OFF, Mood.HALTED} and measured.lack != Reason.NOT_CONFIGURED
    reason = str(state.mood)
    if measured.lack == Reason.NOT_CONFIGURED and state.mood != Mood.OFF:
        reason = Reason.NOT_CONFIGURED
    return Verdict(
        type=ConditionType.TUNING_ACTIVE,
        status=TRUE if is_active else FALSE,
        reason=reason,
        message=state.message,
        is_bad=state.mood == Mood.HALTED,
    )

"""What keeps the tuner from a new change. Each guard gives a constant and a sentence.

Guards stop new changes only: one in flight is still judged. Those that say that nothing can be
measured or done now (`freezes`) also take a change in flight back once they last ten minutes.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from paceline_crds import durations
from paceline_crds.spec_tuning import MaintenanceWindow, TuningMode
from paceline_operator.decide.tuning import ledger, load, verdict
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.observation import Observation
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.signals import Problem
from paceline_operator.decide.tuning.state import Ban, Outcome, State
from paceline_operator.resources import objects

FREEZE_S = 600
"""A freeze that lasts longer takes the change in flight back: never kept and unverified."""
ERROR_SHARE = 0.05
LACKS = {
    Problem.NO_PODS: "no pod has been ready for a whole window, warm-up aside",
    Problem.NO_SERIES: "Prometheus has no series of the counted pods; check that it scrapes them",
    Problem.PODS_MISSING: "Prometheus has no series of some of the counted pods",
    Problem.SCRAPE_TOO_SLOW: "a window must hold four scrapes; make tuning.window longer, or "
    "monitoring.podMonitor.interval shorter",
}
"""Sentences for what there is no measurement for."""
STALE_WINDOWS = 3
MAX_REVERSALS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why there is no new change."""

    reason: str
    message: str
    freezes: bool = True
    """Whether it also ends a change in flight if it lasts; False for mere patience."""


def first(state: State, seen: Observation, now: int) -> Stop | None:
    """The first guard that speaks against any new change."""
    return _of_people(seen) or _of_pods(seen) or _of_metrics(state, seen, now)


def patience(state: State, seen: Observation, now: int) -> Stop | None:
    """What speaks against a new change though everything can be measured."""
    policy, spent = seen.policy, state.spent
    if not seen.may_start:
        return _wait("TooManyAtOnce", "as many changes are in flight as this operator allows")
    if spent.reversals >= MAX_REVERSALS:
        return _wait("Holding", "two accepted changes were undone today: it holds what it has")
    until = _cooldown_until(state, policy)
    if until > now:
        return _wait("Cooldown", f"the next change may come at {objects.timestamp(until)}")
    if spent.live >= policy.live_budget:
        return _wait("BudgetSpent", f"{spent.live} changes were made today, as many as allowed")
    if not verdict.is_ground(state.baseline, policy):
        return _wait(*_measuring(state, policy))
    if state.seen_until - state.baseline.end >= verdict.MIN_WINDOWS * policy.window_s:
        # As many windows make a symptom: all that showed it may be of a load that came later.
        return _wait("Measuring", "the measurement under these settings is too old; a new one runs")
    return None


def mode_of(state: State, policy: Policy) -> TuningMode:
    """The mode in force: after too many roll-backs of a day, changes are only proposed."""
    if policy.mode is TuningMode.AUTO and state.spent.rollbacks >= policy.max_rollbacks:
        return TuningMode.PROPOSE
    return policy.mode


def may_restart(state: State, policy: Policy, now: int) -> bool:
    """Whether a change may replace pods now."""
    return (
        policy.allow_restart
        and state.spent.restart < policy.restart_budget
        and any(is_open(window, now) for window in policy.maintenance_windows)
    )


def is_open(window: MaintenanceWindow, now: int) -> bool:
    """Whether a maintenance window is open."""
    zone = ZoneInfo(window.time_zone) if window.time_zone else UTC
    here = datetime.fromtimestamp(now, zone)
    hour, minute = (int(part) for part in window.start.split(":"))
    length = timedelta(milliseconds=durations.parse_ms(window.duration))
    days = {day.value for day in window.days} if window.days else None
    for back in range(length.days + 2):
        began = (here - timedelta(days=back)).replace(hour=hour, minute=minute, second=0)
        is_its_day = days is None or began.strftime("%A") in days
        if is_its_day and began <= here < began + length:
            return True
    return False


def is_tabu(state: State, setting: str, direction: str, at: str, now: int) -> Ban | None:
    """The ban on a move at this load, or at one beside it."""
    for ban in state.bans:
        is_same = (ban.setting, ban.direction.value) == (setting, direction)
        if is_same and ban.until > now and load.are_near(ban.load_bin, at):
            return ban
    return None


def _of_people(seen: Observation) -> Stop | None:
    if seen.is_paused:
        return Stop(reason="Paused", message="spec.paused is true")
    if seen.is_operator_frozen:
        return Stop(reason="OperatorFrozen", message="the whole operator's tuning is frozen")
    if seen.is_frozen:
        return Stop(reason="Frozen", message="the annotation paceline.dev/freeze is set")
    return None


def _of_pods(seen: Observation) -> Stop | None:
    fleet = seen.fleet
    if fleet.replicas == 0:
        return Stop(reason="ScaledToZero", message="no pod is wanted")
    if fleet.is_rolling_out:
        return Stop(reason="RollingOut", message="pods are being replaced")
    if fleet.num_pods != fleet.replicas:
        return Stop(
            reason="Scaling", message=f"{fleet.num_pods} of {fleet.replicas} pods are there"
        )
    if fleet.num_ready < fleet.replicas:
        return Stop(
            reason="PodsNotReady", message=f"{fleet.num_ready} of {fleet.replicas} pods are ready"
        )
    if not fleet.is_agreed:
        return Stop(
            reason="SettingsPending", message="the wanted settings are not in force on every pod"
        )
    return None


def _of_metrics(state: State, seen: Observation, now: int) -> Stop | None:
    policy = seen.policy
    if seen.lack_of_metrics:
        return Stop(reason=seen.lack_of_metrics, message=seen.lack_text)
    if state.lack:
        return Stop(reason=state.lack, message=LACKS[Problem(state.lack)])
    age = now - state.seen_until
    if state.seen_until and age > STALE_WINDOWS * policy.window_s + 2 * policy.scrape_s:
        since = objects.timestamp(state.seen_until)
        return Stop(reason="MetricsStale", message=f"the last measurement ended at {since}")
    arm = state.growing if state.growing.windows else state.baseline
    if arm.finished and arm.errors / arm.finished > ERROR_SHARE:
        return Stop(reason="Errors", message=f"{arm.errors:.0f} requests ended with an error")
    return None


def _measuring(state: State, policy: Policy) -> tuple[str, str]:
    growing = state.growing
    count = f"{growing.requests:.0f} of {policy.min_requests} requests"
    if _is_low(growing, policy):
        return "LowTraffic", f"{count}: too little traffic for a verdict within an hour"
    if verdict.is_full(growing, policy):
        return "Measuring", f"{growing.windows} windows differ by too much: {count}, and more come"
    return "Measuring", f"{count} under these settings"


def _is_low(arm: Arm, policy: Policy) -> bool:
    """Whether an arm would take longer than it may."""
    if arm.windows < verdict.MIN_WINDOWS:
        return False
    return arm.requests * policy.max_arm_s < policy.min_requests * (arm.end - arm.start)


def _cooldown_until(state: State, policy: Policy) -> int:
    made = [item for item in state.history if item.outcome is not Outcome.REJECTED]
    if not made:
        return 0
    is_restart = ledger.is_restart(made[-1].setting, policy)
    pause = policy.restart_cooldown_s if is_restart else policy.live_cooldown_s
    return made[-1].ended + pause


def _wait(reason: str, message: str) -> Stop:
    return Stop(reason=reason, message=message, freezes=False)

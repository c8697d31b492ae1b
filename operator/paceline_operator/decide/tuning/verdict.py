"""Whether a change did good: two arms compared at equal load, against noise, target by target."""

from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from paceline_operator.decide.tuning import load
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.symptom import Symptom

LEAST_GAIN = 0.02
"""A smaller gain is none, however well it is measured."""
STANDARD_ERRORS = 2.0
WORSE_POINTS = 0.01
"""A target that loses more of its attainment (and more than noise) is worse."""
ALARM_POINTS = 0.05
ALARM_PREEMPTIONS = 3.0
TTFT_COST = 1.15
THROUGHPUT_LOSS = 0.85
OUT_OF_REACH = 0.02
"""Up to this share of requests within every target, nobody is."""
LEAST_PROGRESS = 0.05
"""By so much a latency that is far from its target has to fall."""
MANY_TIMES = 9.0
"""From a gain of so many times what there was it is told in figures, not as a share."""
MIN_WINDOWS = 3
PATIENCE = 3
"""An unclear comparison goes on until so many times the requests and windows of an arm."""

STEADY = 0.05
"""An arm whose goodput is known to so much may be compared with as soon as it is full."""


class Judgement(StrEnum):
    """What a comparison says."""

    TOO_FEW = "TooFewRequests"
    OTHER_LOAD = "OtherLoad"
    BETTER = "Better"
    UNCLEAR = "NoImprovement"
    WORSE = "Worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A judgement with its reason in words."""

    judgement: Judgement
    text: str


def is_full(arm: Arm, policy: Policy) -> bool:
    """Whether an arm holds enough to be compared."""
    return arm.requests >= policy.min_requests and arm.windows >= MIN_WINDOWS


def is_ground(arm: Arm, policy: Policy) -> bool:
    """Whether an arm may stand as what a change is compared with.

    It cannot grow any more once the change is made, so one whose windows differ goes on before.
    """
    if not is_full(arm, policy):
        return False
    is_long = arm.windows >= PATIENCE * MIN_WINDOWS or arm.end - arm.start > policy.max_arm_s
    return is_long or arm.scatter <= STEADY


def is_drawn_out(arm: Arm, policy: Policy) -> bool:
    """Whether an unclear comparison has gone on for long enough.

    Windows count as requests do: what three windows scatter says little of how far they may.
    """
    is_long = arm.windows >= PATIENCE * MIN_WINDOWS
    return is_long and arm.requests >= PATIENCE * policy.min_requests


def judge(symptom: Symptom, before: Arm, after: Arm, policy: Policy) -> Verdict:
    """Compare what was measured before a change and after it."""
    if not is_full(after, policy):
        text = f"{after.requests:.0f} of {policy.min_requests} requests"
        return Verdict(judgement=Judgement.TOO_FEW, text=text)
    compared = load.compare(before, after)
    if not compared.is_equal:
        text = f"{compared.worst} differs by {compared.difference:.0%}"
        return Verdict(judgement=Judgement.OTHER_LOAD, text=text)
    if far := _far_from_targets(symptom, before, after, policy, compared.demand):
        return far
    has_targets = policy.has_targets
    was, is_now = before.goodput(has_targets), after.goodput(has_targets) / compared.demand
    gain = is_now / max(was, 1 / max(1.0, before.pod_seconds)) - 1
    noise = max(
        LEAST_GAIN,
        STANDARD_ERRORS * sqrt(before.noise(has_targets) ** 2 + after.noise(has_targets) ** 2),
    )
    text = _told(was, is_now, gain, noise, policy)
    if broken := _broken(symptom, before, after, policy, compared.demand):
        return Verdict(judgement=Judgement.WORSE, text=f"{text}; {broken}")
    if gain > noise:
        return Verdict(judgement=Judgement.BETTER, text=text)
    judgement = Judgement.WORSE if gain < -noise else Judgement.UNCLEAR
    return Verdict(judgement=judgement, text=text)


def _told(was: float, is_now: float, gain: float, noise: float, policy: Policy) -> str:
    """The comparison in words; where there was next to nothing before, a share of it says less."""
    what, unit = ("goodput", "good requests") if policy.has_targets else ("output tokens", "tokens")
    if gain < MANY_TIMES:
        return f"{what} {gain:+.1%} at equal load (noise {noise:.1%})"
    before = f"{was:.3g}" if was else "none"
    return f"{what} from {before} to {is_now:.3g} {unit} a second and pod at equal load"


def _far_from_targets(
    symptom: Symptom, before: Arm, after: Arm, policy: Policy, demand: float
) -> Verdict | None:
    """Where nobody is within the targets on either side goodput tells nothing: is it nearer now?

    Several steps may be needed until the first request is within; without this each of them would
    be taken back, and the way be closed by its tabu.
    """
    shares = [arm.attainment("all") for arm in (before, after)]
    if any(share is None or share > OUT_OF_REACH for share in shares):
        return None
    missed = [name for name in ("ttft", "itl") if name in policy.targets]
    if not missed:
        return None
    name = min(missed, key=lambda name: before.attainment(name) or 0.0)
    was, now = (arm.per_request(getattr(arm, name)) for arm in (before, after))
    text = f"nobody is within the targets; {name} went from {was:.3f} s to {now:.3f} s"
    if broken := _broken(symptom, before, after, policy, demand):
        return Verdict(judgement=Judgement.WORSE, text=f"{text}; {broken}")
    progress = 1 - now / was if was > 0 else 0.0
    if progress > LEAST_PROGRESS:
        return Verdict(judgement=Judgement.BETTER, text=text)
    judgement = Judgement.WORSE if progress < -LEAST_PROGRESS else Judgement.UNCLEAR
    return Verdict(judgement=judgement, text=text)


def alarm(before: Arm, after: Arm, policy: Policy) -> str:
    """Why a change has to be taken back at once, whatever the load; empty if it has not."""
    enough = max(20.0, policy.min_requests / 10)
    for name in ("all", *policy.targets):
        judged = after.judged if name == "all" else getattr(after, f"{name}_judged")
        lost = _lost(before, after, name)
        if judged >= enough and lost is not None and lost > max(ALARM_POINTS, _error(after, name)):
            return f"attainment ({name}) fell by {lost:.1%}"
    was, now = (arm.per_request(arm.preemptions) for arm in (before, after))
    is_many = now > max(ALARM_PREEMPTIONS * was, 0.03)
    if after.requests >= enough and is_many and _is_more_preempted(before, after):
        return f"preemptions per request rose from {was:.3f} to {now:.3f}"
    return ""


def _broken(symptom: Symptom, before: Arm, after: Arm, policy: Policy, demand: float) -> str:
    """What speaks against a change even if goodput rose."""
    for name in policy.targets:
        lost = _lost(before, after, name)
        if lost is not None and lost > max(WORSE_POINTS, _error(before, name), _error(after, name)):
            return f"attainment ({name}) fell by {lost:.1%}"
    if "ttft" not in policy.targets and symptom is Symptom.SPIKY_STREAMS:
        was, now = before.per_request(before.ttft), after.per_request(after.ttft)
        if now > TTFT_COST * was > 0:
            return f"time to first token rose from {was:.2f} s to {now:.2f} s"
    rate = after.goodput(has_targets=False) / demand
    if rate < THROUGHPUT_LOSS * before.goodput(has_targets=False):
        return "more than 15 % of the throughput was lost"
    if symptom is Symptom.KV_PRESSURE and _is_more_preempted(before, after):
        was, now = before.per_request(before.preemptions), after.per_request(after.preemptions)
        return f"preemptions per request rose from {was:.3f} to {now:.3f}"
    return ""


def _is_more_preempted(before: Arm, after: Arm) -> bool:
    """Whether preemptions per request rose by more than chance does with so few of them."""
    rates = [arm.per_request(arm.preemptions) for arm in (before, after)]
    squares = sum(arm.preemptions / max(1.0, arm.finished) ** 2 for arm in (before, after))
    return rates[1] - rates[0] > STANDARD_ERRORS * sqrt(squares)


def _lost(before: Arm, after: Arm, name: str) -> float | None:
    was, now = before.attainment(name), after.attainment(name)
    return None if was is None or now is None else was - now


def _error(arm: Arm, name: str) -> float:
    """Twice the standard error of an attainment."""
    share = arm.attainment(name) or 0.0
    judged = arm.judged if name == "all" else getattr(arm, f"{name}_judged")
    return STANDARD_ERRORS * sqrt(share * (1 - share) / max(1.0, judged))

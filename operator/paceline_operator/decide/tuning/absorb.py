"""New windows: symptoms go on, and the arm that is being measured grows."""

from dataclasses import replace

from paceline_operator.decide.tuning import arm as arms
from paceline_operator.decide.tuning import dials, symptoms, verdict, watch
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.observation import Observation
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.signals import SAYS_NOTHING, Sample
from paceline_operator.decide.tuning.state import Phase, State


def scaled(state: State, seen: Observation, now: int) -> State:
    """The state that knows how many pods share the requests, and since when."""
    serving = seen.fleet.num_serving
    if serving == state.serving:
        return state
    return replace(
        state, serving=serving, serving_since=now if state.serving else state.serving_since
    )


def absorbed(state: State, seen: Observation) -> State:
    """The state with every window that it has not seen.

    A window during which pods came or went is none of either load. When exactly they did is not
    known, only when it was seen: so no window counts that had begun by then.
    """
    caps = dials.caps(seen.dials)
    for sample in seen.samples:
        if sample.window.start < state.seen_until:
            continue
        state = replace(state, seen_until=sample.window.end)
        problem = sample.problem
        lack = problem.value if problem in SAYS_NOTHING else ""
        if state.lack != lack:
            state = replace(state, lack=lack)
        is_of_other_pods = 0 < state.serving_since >= sample.window.start
        if problem is not None or is_of_other_pods:
            continue
        held = watch.held(state.symptoms)
        found = symptoms.evaluate(sample, seen.policy, caps, held)
        state = replace(state, symptoms=watch.advance(state.symptoms, found, sample.window.start))
        if arms.is_usable(sample):
            state = _measured(state, sample, seen.policy)
    return state


def _measured(state: State, sample: Sample, policy: Policy) -> State:
    change, has_targets = state.current, policy.has_targets
    if change is None or change.phase is Phase.PROPOSED:
        growing = arms.extended(state.growing, sample, has_targets)
        if verdict.is_ground(growing, policy):
            return replace(state, baseline=growing, growing=Arm())
        if growing.end - growing.start > policy.max_arm_s:
            growing = Arm()
        return replace(state, growing=growing)
    if change.phase not in {Phase.SETTLING, Phase.VERIFYING}:
        return state
    if sample.window.start < change.phase_since:
        return state
    measured = arms.extended(change.measured, sample, has_targets)
    return replace(state, current=replace(change, measured=measured))

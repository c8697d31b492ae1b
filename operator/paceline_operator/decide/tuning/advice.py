"""What a person can do that the tuner may not: a sentence with figures, the manifest's change.

Symptoms whose cure is no setting always come with advice; the others do where every move has an
obstacle, or where nobody but a person may act.
"""

from collections.abc import Mapping

from paceline_crds.spec_tuning import TuningMode
from paceline_operator.decide.tuning import diagnosis, load
from paceline_operator.decide.tuning.diagnosis import Obstacle
from paceline_operator.decide.tuning.dials import Stuck
from paceline_operator.decide.tuning.moves import Move
from paceline_operator.decide.tuning.observation import Observation
from paceline_operator.decide.tuning.state import Advice, State
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.decide.tuning.watch import Seen

Figures = Mapping[str, float]


def of(state: State, seen: Observation, now: int) -> tuple[Advice, ...]:
    """Advice for what holds, in the order of evaluation."""
    made = (_for(item, state, seen, now) for item in state.symptoms if item.holds)
    return tuple(item for item in made if item is not None)


def _for(item: Seen, state: State, seen: Observation, now: int) -> Advice | None:
    plain = _plain(item.symptom, item.evidence, seen)
    if plain is not None:
        return plain
    if state.current is not None and state.current.symptom is item.symptom:
        return None
    load_bin = load.bin_of(state.baseline)
    found = [
        (move, diagnosis.obstacle(state, seen, move, load_bin, now))
        for move in diagnosis.candidates(item, state, seen)
    ]
    nobody_acts = seen.policy.mode is TuningMode.OBSERVE
    if any(not why for _, why in found) and not nobody_acts:
        return None
    return _by_hand(item, found, seen)


def _by_hand(item: Seen, found: list[tuple[Move, str]], seen: Observation) -> Advice:
    """The first move that a person could make, and why the tuner does not."""
    told = _TOLD[item.symptom].format_map(_Shown(item.evidence))
    for move, why in found:
        if why == Obstacle.AT_BOUND or why in {Obstacle.TABU, Obstacle.NOT_SUPPORTED}:
            continue
        if why == Stuck.NOT_KNOWN:
            continue
        name, after = move.dial.name, move.after
        if why == Stuck.NOT_ALLOWED:
            text = f"{told}; allow FP8 for the KV cache, which halves what a token needs."
            change = "spec.tuning.bounds.kvCacheDtype.allowed: [FP8]"
        else:
            text = f"{told}; set {name} to {after} (now {move.before}){_BECAUSE.get(why, '')}."
            change = f"spec.{move.dial.place}: {_value(move)}"
        return Advice(symptom=item.symptom, text=text, change=change)
    replicas = seen.fleet.replicas + 1
    at_bound = any(why == Obstacle.AT_BOUND for _, why in found)
    more = " Its setting is at its bound." if at_bound else ""
    text = f"{told}; add a replica, or lower what each request may use (maxModelLen).{more}"
    return Advice(symptom=item.symptom, text=text, change=f"spec.replicas: {replicas}")


def _value(move: Move) -> str:
    return f'"{move.after}"' if "." in move.after else move.after


_BECAUSE: Mapping[str, str] = {
    Stuck.PINNED: "; spec pins it, and tuning.bounds does not name it",
    Obstacle.NEEDS_RESTART: "; it replaces the pods, which tuning may not do now",
    Obstacle.LIVE_NOT_ALLOWED: "; tuning.allowLive is false",
    Obstacle.NOT_JUDGED: "; stock vLLM does not count the requests within slo, so whether it did "
    "good is yours to see",
}

_TOLD = {
    Symptom.KV_PRESSURE: "The KV cache is full (p95 {kvUsageP95:.0%}) and {preemptionsPerRequest:"
    ".3f} of the requests are preempted",
    Symptom.SPECULATION_COSTS: "Drafts cost more than they give with {running:.0f} running "
    "requests",
    Symptom.SPIKY_STREAMS: "Streams stall while long prompts are computed (gap p99 {itlP99:.3f} s, "
    "p50 {itlP50:.3f} s)",
    Symptom.SLOW_STREAMS: "Every step is slow with {running:.0f} running requests (gap p50 "
    "{itlP50:.3f} s)",
    Symptom.QUEUE_WAIT: "Requests wait {queueTime:.1f} s for a place and {prefillTime:.1f} s for "
    "their prompt",
    Symptom.SLOW_PREFILL: "Prompts take {prefillTime:.2f} s in full steps although nobody waits",
    Symptom.CAP_TOO_LOW: "{waiting:.0f} requests wait at the limit of {maxNumSeqs:.0f} while the "
    "KV cache is nearly empty (p95 {kvUsageP95:.0%})",
}


class _Shown(dict[str, float]):
    """Figures for a sentence; one that is missing is shown as zero of nothing."""

    def __init__(self, figures: Figures) -> None:
        super().__init__(figures)

    def __missing__(self, key: str) -> float:
        return float("nan")


def _plain(symptom: Symptom, figures: Figures, seen: Observation) -> Advice | None:
    """Advice of symptoms that no setting cures."""
    found = _BY_PEOPLE.get(symptom)
    if found is None:
        return None
    text, change = found
    return Advice(
        symptom=symptom,
        text=text.format_map(_Shown(figures)),
        change=change.replace("MORE", str(seen.fleet.replicas + 1)),
    )


_BY_PEOPLE: Mapping[Symptom, tuple[str, str]] = {
    Symptom.SLOW_START: (
        "A pod takes {startupSeconds:.0f} s to start; keep its weights and compiled kernels.",
        "spec.model.cache.pvc: {claimName: models}",
    ),
    Symptom.PREFIX_MISSES: (
        """{sharedHeads:.0%} of the prompts begin like another one, but {prefixHits:.0%} of their \
tokens are found in the prefix cache; put first what all share, and route by prefix.""",
        "spec.gateway.inferencePool.endpointPicker: {name: prefix-aware-picker, port: 9002}",
    ),
    Symptom.HOST_BOUND: (
        """The device is busy {deviceBusy:.0%} of the time, since {hostShare:.0%} of each step is \
spent outside of it; give the pod more CPU (two cores, and one more for each device).""",
        'spec.resources.requests.cpu: "4"',
    ),
    Symptom.DEVICE_BOUND: (
        """The device is busy {deviceBusy:.0%} of the time at {running:.0f} running requests; \
add a replica, or serve quantised weights.""",
        "spec.replicas: MORE",
    ),
}

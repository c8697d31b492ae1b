"""The eleven symptoms: each a rule over one window that tells it from what looks alike.

Thresholds are pairs (enter, leave). What holds three windows is told in `watch`.
"""

from collections.abc import Mapping

from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.signals import Sample, Signal
from paceline_operator.decide.tuning.symptom import (
    FEW_REQUESTS,
    Finding,
    Pair,
    Rule,
    Symptom,
    View,
    per_request,
)

SPREAD = Pair(enter=4.0, leave=2.5)
"""ITL p99 over p50: spikes above; flat below the lower one."""
FLAT = Pair(enter=2.5, leave=4.0)
FULL_KV = Pair(enter=0.95, leave=0.9)
PREEMPTED = Pair(enter=0.01, leave=0.002)
"""Preemptions per finished request."""
EMPTY_KV = Pair(enter=0.3, leave=0.4)
AT_CAP = Pair(enter=0.95, leave=0.85)
NEAR_CAP = Pair(enter=0.8, leave=0.7)
"""Running requests over maxNumSeqs."""
LARGE_STEPS = Pair(enter=0.02, leave=0.01)
"""A hundredth of the gaps makes their p99."""
MOSTLY_LARGE_STEPS = Pair(enter=0.2, leave=0.1)
QUEUE_OVER_PREFILL = Pair(enter=3.0, leave=1.5)
PREFILL_OVER_TARGET = Pair(enter=0.7, leave=0.5)
SLOW_MEDIAN = Pair(enter=1.0, leave=0.6)
"""ITL p50 over its target. A request is judged by its slowest gaps, so while too many miss the
target it goes on below a median that is just within it."""
SOMEBODY_WAITS = Pair(enter=0.5, leave=0.2)
"""Mean of waiting requests of a pod."""
HOST_SHARE = Pair(enter=0.6, leave=0.5)
BUSY = Pair(enter=0.8, leave=0.7)
"""Share of the time that steps take."""
DEVICE_BUSY = Pair(enter=0.9, leave=0.85)
SHARED_HEADS = Pair(enter=0.3, leave=0.2)
FEW_HITS = Pair(enter=0.2, leave=0.3)
MANY_RUNNING = Pair(enter=64.0, leave=48.0)
"""Speculation wins below 16 running requests and costs above 64."""
SLOW_START_S = Pair(enter=600.0, leave=540.0)
LONG_PROMPT_TOKENS = 512


def evaluate(
    sample: Sample,
    policy: Policy,
    caps: Mapping[str, float],
    held: frozenset[Symptom] = frozenset(),
) -> tuple[Finding, ...]:
    """Every symptom in the order of their evaluation.

    Args:
        sample: of one window that can be used.
        policy: targets.
        caps: settings in force (camelCase), as far as they are known numbers.
        held: symptoms that were there before.
    """
    return tuple(
        rule(View(sample=sample, policy=policy, caps=caps, is_held=name in held))
        for name, rule in _RULES.items()
    )


def _lack(symptom: Symptom, lack: str) -> Finding:
    return Finding(symptom=symptom, is_shown=None, lack=lack)


def _slow_start(view: View) -> Finding:
    startup = view.get(Signal.STARTUP)
    if startup is None:
        return _lack(Symptom.SLOW_START, "start-up phases")
    return Finding(
        symptom=Symptom.SLOW_START,
        is_shown=SLOW_START_S.shows(startup, view.is_held),
        evidence={"startupSeconds": startup},
    )


def _kv_pressure(view: View) -> Finding:
    usage = view.get(Signal.KV_USAGE_P95)
    preempted = per_request(view.sample, Signal.PREEMPTIONS)
    if usage is None or preempted is None:
        return _lack(Symptom.KV_PRESSURE, "KV usage and preemptions of enough requests")
    return Finding(
        symptom=Symptom.KV_PRESSURE,
        is_shown=FULL_KV.shows(usage, view.is_held) and PREEMPTED.shows(preempted, view.is_held),
        evidence={"kvUsageP95": usage, "preemptionsPerRequest": preempted},
    )


def _speculation_costs(view: View) -> Finding:
    running, drafted = view.get(Signal.RUNNING), view.get(Signal.DRAFTED)
    if running is None or drafted is None:
        return _lack(Symptom.SPECULATION_COSTS, "running requests and draft tokens")
    evidence = {"running": running, "drafted": drafted}
    accepted = view.sample.ratio(Signal.ACCEPTED, Signal.DRAFTED)
    if accepted is not None:
        evidence["acceptance"] = accepted
    return Finding(
        symptom=Symptom.SPECULATION_COSTS,
        is_shown=drafted > 0 and MANY_RUNNING.shows(running, view.is_held),
        evidence=evidence,
    )


def _spiky_streams(view: View) -> Finding:
    target = view.policy.targets.get("itl")
    found = view.sample.known(Signal.ITL_P50, Signal.ITL_P99, Signal.LARGE_STEPS)
    share, prompt = view.attainment("itl"), view.get(Signal.LONG_PROMPT)
    preempted = per_request(view.sample, Signal.PREEMPTIONS)
    if target is None or not found or share is None or preempted is None or prompt is None:
        return _lack(Symptom.SPIKY_STREAMS, "slo.itl, gaps between tokens, sizes of steps")
    median, high, large = found
    spread = high / median if median > 0 else 0.0
    return Finding(
        symptom=Symptom.SPIKY_STREAMS,
        is_shown=view.misses("itl")
        and median <= target.limit_s
        and SPREAD.shows(spread, view.is_held)
        and LARGE_STEPS.shows(large, view.is_held)
        and prompt >= _long(view)
        and preempted <= PREEMPTED.enter,
        evidence={"itlP50": median, "itlP99": high, "itlAttainment": share, "largeSteps": large},
    )


def _long(view: View) -> float:
    """Prompt tokens that fill a good part of a step."""
    budget = view.caps.get("maxNumBatchedTokens")
    return min(LONG_PROMPT_TOKENS, budget / 4) if budget else LONG_PROMPT_TOKENS


def _slow_streams(view: View) -> Finding:
    target, cap = view.policy.targets.get("itl"), view.caps.get("maxNumSeqs")
    found = view.sample.known(Signal.ITL_P50, Signal.ITL_P99, Signal.RUNNING)
    if target is None or not cap or not found:
        return _lack(Symptom.SLOW_STREAMS, "slo.itl, maxNumSeqs, gaps between tokens")
    median, high, running = found
    spread = high / median if median > 0 else 0.0
    return Finding(
        symptom=Symptom.SLOW_STREAMS,
        is_shown=SLOW_MEDIAN.shows(median / target.limit_s, view.is_held)
        and (view.misses("itl") or not view.is_held)
        and FLAT.shows(spread, view.is_held)
        and NEAR_CAP.shows(running / cap, view.is_held),
        evidence={"itlP50": median, "itlP99": high, "running": running, "maxNumSeqs": cap},
    )


def _queue_wait(view: View) -> Finding:
    found = view.sample.known(
        Signal.LEAST_WAITING, Signal.QUEUE_TIME, Signal.PREFILL_TIME, Signal.TTFT_P50
    )
    if not found:
        return _lack(Symptom.QUEUE_WAIT, "waiting requests, queue time, prefill time")
    least, queued, prefill, median = found
    ratio = queued / prefill if prefill > 0 else 0.0
    is_late = view.misses("ttft") if "ttft" in view.policy.targets else True
    return Finding(
        symptom=Symptom.QUEUE_WAIT,
        is_shown=least > 0 and is_late and QUEUE_OVER_PREFILL.shows(ratio, view.is_held),
        evidence={
            "leastWaiting": least,
            "queueTime": queued,
            "prefillTime": prefill,
            "ttftP50": median,
        },
    )


def _slow_prefill(view: View) -> Finding:
    target = view.policy.targets.get("ttft")
    found = view.sample.known(Signal.PREFILL_TIME, Signal.WAITING, Signal.LARGE_STEPS)
    if target is None or not found:
        return _lack(Symptom.SLOW_PREFILL, "slo.ttft, prefill time, sizes of steps")
    prefill, waiting, large = found
    return Finding(
        symptom=Symptom.SLOW_PREFILL,
        is_shown=view.misses("ttft")
        and PREFILL_OVER_TARGET.shows(prefill / target.limit_s, view.is_held)
        and not SOMEBODY_WAITS.shows(waiting, not view.is_held)
        and MOSTLY_LARGE_STEPS.shows(large, view.is_held),
        evidence={"prefillTime": prefill, "waiting": waiting, "largeSteps": large},
    )


def _prefix_misses(view: View) -> Finding:
    heads = view.get(Signal.PROMPT_HEADS)
    shared = view.sample.ratio(Signal.SHARED_HEADS, Signal.PROMPT_HEADS)
    hits = view.sample.ratio(Signal.PREFIX_HITS, Signal.PREFIX_QUERIES)
    if heads is None or heads < FEW_REQUESTS or shared is None or hits is None:
        return _lack(Symptom.PREFIX_MISSES, "heads of prompts, hits of the prefix cache")
    return Finding(
        symptom=Symptom.PREFIX_MISSES,
        is_shown=SHARED_HEADS.shows(shared, view.is_held) and FEW_HITS.shows(hits, view.is_held),
        evidence={"sharedHeads": shared, "prefixHits": hits},
    )


def _cap_too_low(view: View) -> Finding:
    cap = view.caps.get("maxNumSeqs")
    found = view.sample.known(Signal.KV_USAGE_P95, Signal.RUNNING, Signal.WAITING)
    if not cap or not found:
        return _lack(Symptom.CAP_TOO_LOW, "maxNumSeqs, KV usage, running and waiting requests")
    usage, running, waiting = found
    return Finding(
        symptom=Symptom.CAP_TOO_LOW,
        is_shown=EMPTY_KV.shows(usage, view.is_held)
        and AT_CAP.shows(running / cap, view.is_held)
        and SOMEBODY_WAITS.shows(waiting, view.is_held),
        evidence={"kvUsageP95": usage, "running": running, "maxNumSeqs": cap, "waiting": waiting},
    )


def _shares(view: View) -> tuple[float, float] | None:
    """Share of the time that steps take, and of the time that the device is busy."""
    found = view.sample.known(Signal.HOST_TIME, Signal.DEVICE_TIME)
    total = view.sample.window.length_s * len(view.sample.pods)
    return ((found[0] + found[1]) / total, found[1] / total) if found and total else None


def _host_bound(view: View) -> Finding:
    shares = _shares(view)
    if shares is None:
        return _lack(Symptom.HOST_BOUND, "time of steps by part")
    busy, device = shares
    host = 1 - device / busy if busy > 0 else 0.0
    return Finding(
        symptom=Symptom.HOST_BOUND,
        is_shown=BUSY.shows(busy, view.is_held) and HOST_SHARE.shows(host, view.is_held),
        evidence={"hostShare": host, "deviceBusy": device, "stepsBusy": busy},
    )


def _device_bound(view: View) -> Finding:
    shares, waiting = _shares(view), view.get(Signal.WAITING)
    running, cap = view.get(Signal.RUNNING), view.caps.get("maxNumSeqs")
    if shares is None or waiting is None or running is None or not cap:
        return _lack(Symptom.DEVICE_BOUND, "time of steps by part, maxNumSeqs")
    return Finding(
        symptom=Symptom.DEVICE_BOUND,
        is_shown=DEVICE_BUSY.shows(shares[1], view.is_held)
        and NEAR_CAP.shows(running / cap, view.is_held)
        and SOMEBODY_WAITS.shows(waiting, view.is_held),
        evidence={"deviceBusy": shares[1], "running": running, "maxNumSeqs": cap},
    )


_RULES: Mapping[Symptom, Rule] = {
    Symptom.SLOW_START: _slow_start,
    Symptom.KV_PRESSURE: _kv_pressure,
    Symptom.SPECULATION_COSTS: _speculation_costs,
    Symptom.SPIKY_STREAMS: _spiky_streams,
    Symptom.SLOW_STREAMS: _slow_streams,
    Symptom.QUEUE_WAIT: _queue_wait,
    Symptom.SLOW_PREFILL: _slow_prefill,
    Symptom.PREFIX_MISSES: _prefix_misses,
    Symptom.CAP_TOO_LOW: _cap_too_low,
    Symptom.HOST_BOUND: _host_bound,
    Symptom.DEVICE_BOUND: _device_bound,
}

"""An engine as a formula: how goodput, latencies, preemptions and KV usage answer settings.

A steady state for each window, with the noise of so many requests. It is no simulator: it has the
optima and the traps that the tuner has to find and to avoid, and costs microseconds.
"""

from dataclasses import dataclass
from math import ceil, exp, log, sqrt
from random import Random

from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.signals import Sample, Signal, Window

_QUEUE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What users do.

    Attributes:
        rate: requests a second and pod, of users that come on their own; 0 in a closed loop.
        clients: users of a pod that wait for each answer; 0 in an open loop.
        prompt, output: mean tokens.
        long_prompt, long_share: tokens of long prompts, and their share.
        shared_heads, hits: shares of prompts that begin like another one, and of tokens found.
        errors: share of requests that fail.
    """

    rate: float = 0.0
    clients: int = 0
    prompt: int = 512
    output: int = 128
    long_prompt: int = 1024
    long_share: float = 0.05
    shared_heads: float = 0.05
    hits: float = 0.3
    errors: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Settings in force."""

    seqs: float
    budget: float
    long_cap: float
    watermark: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """One engine.

    Attributes:
        base_s, per_seq_s, per_token_s: time of a step: alone, per request, per prompt token.
        host_s: part of each step outside of the device.
        kv_tokens: of the cache.
        startup_s: how long its start took.
    """

    base_s: float = 0.008
    per_seq_s: float = 0.0002
    per_token_s: float = 0.00005
    host_s: float = 0.001
    kv_tokens: int = 200_000
    startup_s: float = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What an engine does in a steady state."""

    running: float
    waiting: float
    rate: float
    usage: float
    preempted: float
    itl_p50: float
    itl_p99: float
    ttft: float
    queued: float
    prefill: float
    large: float
    fill: float
    steps_busy: float
    itl_share: float
    ttft_share: float

    def goodput(self, has_targets: bool, output: int) -> float:
        """Expected goodput of a pod."""
        if not has_targets:
            return self.rate * output
        return self.rate * self.itl_share * self.ttft_share


def point(surface: Surface, knobs: Knobs, load: Load, policy: Policy) -> Point:
    """The steady state."""
    room = surface.kv_tokens / (load.prompt + load.output / 2)
    cap = min(knobs.seqs, load.clients or _QUEUE)
    preempted = 0.0
    if cap > room:
        preempted = min(2.0, max(0.0, (cap / room - 1) * 0.6 * (1 - 4 * knobs.watermark)))
    prompt = load.prompt + preempted * (load.prompt + load.output / 2)
    limit = min(cap, room, knobs.budget / (1 + prompt / load.output))
    per_request = load.output * surface.per_seq_s + prompt * surface.per_token_s
    if load.clients:
        running, waiting = limit, max(0.0, load.clients - limit)
    else:
        left = 1 - load.rate * per_request
        wanted = load.rate * load.output * surface.base_s / left if left > 0 else float("inf")
        if wanted < limit and wanted <= room:
            # Nobody waits, so the cache is not full either.
            running, waiting, preempted = wanted, 0.0, 0.0
        else:
            running, waiting = limit, float(_QUEUE) / 4
    plain = surface.base_s + surface.per_seq_s * running
    step = plain + surface.per_token_s * prompt * running / load.output
    rate = running / (step * load.output) if step > 0 else 0.0
    chunk = max(16.0, min(knobs.budget - running, knobs.long_cap, load.long_prompt))
    spike = plain + surface.per_token_s * chunk
    share = min(1.0, rate * load.long_share * ceil(load.long_prompt / chunk) * step)
    weight = min(1.0, share / 0.02)
    high = step * 1.2 * (1 - weight) + max(spike, step * 1.2) * weight
    mean_chunk = max(16.0, min(knobs.budget - running, knobs.long_cap, prompt))
    prefill = ceil(prompt / mean_chunk) * (plain + surface.per_token_s * mean_chunk)
    queued = waiting / rate if rate > 0 else 0.0
    return Point(
        running=running,
        waiting=waiting,
        rate=rate,
        usage=min(1.0, running / room if cap <= room or preempted == 0 else 1.0),
        preempted=preempted,
        itl_p50=step,
        itl_p99=high,
        ttft=queued + prefill,
        queued=queued,
        prefill=prefill,
        large=share if chunk > 0.4 * knobs.budget else 0.0,
        fill=min(1.0, (running + prompt * running / load.output) / knobs.budget),
        steps_busy=1.0 if load.clients or waiting else min(1.0, running / 4),
        itl_share=_share(policy, "itl", high),
        ttft_share=_share(policy, "ttft", queued + prefill),
    )


def _share(policy: Policy, name: str, value: float) -> float:
    """Share of requests within a target: half of them where the value is the target."""
    target = policy.targets.get(name)
    if target is None or value <= 0:
        return 1.0
    steepness = 8.0 if name == "itl" else 4.0
    return 1 / (1 + exp(-steepness * log(target.limit_s * 1.6 / value)))


def sample(
    surface: Surface,
    found: Point,
    load: Load,
    policy: Policy,
    window: Window,
    pods: tuple[str, ...],
    random: Random,
) -> Sample:
    """What Prometheus would say of a window in that state."""
    count, seconds = len(pods), window.length_s
    finished = _noisy(found.rate * seconds * count, random)
    both = found.itl_share * found.ttft_share
    has = policy.targets
    values: dict[Signal, float] = {
        Signal.SCRAPES: max(4.0, seconds / policy.scrape_s),
        Signal.PODS: count,
        Signal.RESTARTS: 0,
        Signal.SLO_CHANGES: 0,
        Signal.FINISHED: finished,
        Signal.ERRORS: finished * load.errors,
        Signal.QUEUE_GROWTH: max(0.0, load.rate - found.rate) * seconds * count,
        Signal.GOOD: _part(finished, both, random) if has else 0,
        Signal.JUDGED: finished if has else 0,
        Signal.TTFT_WITHIN: _part(finished, found.ttft_share, random) if "ttft" in has else 0,
        Signal.TTFT_JUDGED: finished if "ttft" in has else 0,
        Signal.ITL_WITHIN: _part(finished, found.itl_share, random) if "itl" in has else 0,
        Signal.ITL_JUDGED: finished if "itl" in has else 0,
        Signal.E2E_WITHIN: 0,
        Signal.E2E_JUDGED: 0,
        Signal.PROMPT_TOKENS: finished * load.prompt,
        Signal.OUTPUT_TOKENS: finished * load.output,
        Signal.PROMPT_LENGTH: load.prompt,
        Signal.OUTPUT_LENGTH: load.output,
        Signal.LONG_PROMPT: load.long_prompt,
        Signal.RUNNING: found.running,
        Signal.WAITING: found.waiting,
        Signal.LEAST_WAITING: found.waiting * count,
        Signal.KV_USAGE: found.usage,
        Signal.KV_USAGE_P95: found.usage,
        Signal.PREEMPTIONS: finished * found.preempted,
        Signal.ITL_P50: found.itl_p50,
        Signal.ITL_P99: found.itl_p99,
        Signal.TTFT: found.ttft,
        Signal.TTFT_P50: found.ttft,
        Signal.QUEUE_TIME: found.queued,
        Signal.PREFILL_TIME: found.prefill,
        Signal.STEP_FILL: found.fill,
        Signal.LARGE_STEPS: found.large,
        **_times(surface, found, seconds * count),
        Signal.PREFIX_QUERIES: finished * load.prompt,
        Signal.PREFIX_HITS: finished * load.prompt * load.hits,
        Signal.PROMPT_HEADS: finished,
        Signal.SHARED_HEADS: finished * load.shared_heads,
        Signal.DRAFTED: 0,
        Signal.ACCEPTED: 0,
        Signal.STARTUP: surface.startup_s,
    }
    return Sample(window=window, pods=pods, values=values)


def _times(surface: Surface, found: Point, seconds: float) -> dict[Signal, float]:
    host = min(1.0, surface.host_s / found.itl_p50) if found.itl_p50 else 0.0
    busy = seconds * found.steps_busy
    return {Signal.HOST_TIME: busy * host, Signal.DEVICE_TIME: busy * (1 - host)}


def _noisy(mean: float, random: Random) -> float:
    return max(0.0, mean + sqrt(mean) * 0.3 * random.gauss(0.0, 1.0))


def _part(total: float, share: float, random: Random) -> float:
    spread = sqrt(max(0.0, total * share * (1 - share)))
    return min(total, max(0.0, total * share + spread * random.gauss(0.0, 1.0)))

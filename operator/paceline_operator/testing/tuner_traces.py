"""Random traces: an engine, a manifest, a load and faults from one seed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from paceline_operator.decide.tuning.observation import Observation
from paceline_operator.testing.surface import Load, Surface
from paceline_operator.testing.tuner_rig import TunerRig
from paceline_operator.testing.tuner_scenarios import spec_of

TURNS = 30
"""Turns of two minutes, in which loads change and things go wrong."""
CALM_TURNS = 70
"""Turns afterwards, in which neither happens: longer than an arm may take."""


@dataclass(slots=True, kw_only=True)
class Trace:
    """One trace. Mutable: `is_calm` ends the trouble.

    Attributes:
        has_trouble: faults and loads that change; else one load and nothing goes wrong.
    """

    rig: TunerRig
    has_trouble: bool
    is_calm: bool = False


def trace(seed: int, *, has_trouble: bool) -> Trace:
    """The trace of a seed."""
    random = Random(seed)  # noqa: S311 - a test's choices
    surface = Surface(
        base_s=random.uniform(0.004, 0.02),
        per_seq_s=random.uniform(0.00005, 0.0004),
        per_token_s=random.uniform(0.00001, 0.00008),
        kv_tokens=random.choice((40_000, 120_000, 500_000, 2_000_000)),
    )
    loads = [_load(random) for _ in range(4)]
    changes = sorted(random.uniform(0, TURNS * 120) for _ in loads[1:]) if has_trouble else []
    made = Trace(
        rig=TunerRig(
            spec=spec_of(**_spec(random)),
            load=lambda at: loads[sum(moment <= at for moment in changes)],
            surface=surface,
            seed=seed,
            turn_s=120,
        ),
        has_trouble=has_trouble,
    )
    killing, writing = Random(seed + 1), Random(seed + 2)  # noqa: S311
    made.rig.serialises = lambda: writing.random() < 0.25
    if has_trouble:
        made.rig.fault = _fault(random, made)
        made.rig.is_killed = lambda: killing.random() < 0.15
        made.rig.refuses = lambda _: not made.is_calm and killing.random() < 0.1
    return made


def _load(random: Random) -> Load:
    is_closed = random.random() < 0.5
    return Load(
        rate=0.0 if is_closed else random.uniform(0.5, 12),
        clients=random.choice((20, 80, 150, 400)) if is_closed else 0,
        prompt=random.choice((100, 500, 1500)),
        output=random.choice((60, 200, 400)),
        long_prompt=random.choice((600, 3000, 9000)),
        long_share=random.choice((0.0, 0.05, 0.3)),
    )


def _spec(random: Random) -> dict[str, Any]:
    tuning: dict[str, Any] = {
        "minRequests": random.choice((100, 300, 1000)),
        "cooldown": random.choice(("0s", "5m")),
    }
    if random.random() < 0.3:
        tuning["bounds"] = {"maxNumSeqs": {"min": 16, "max": 400}}
    scheduling = {
        "bootMaxNumSeqs": 512,
        "bootMaxNumBatchedTokens": random.choice((2048, 8192)),
        **({"maxNumSeqs": 64} if random.random() < 0.2 else {}),
    }
    spec: dict[str, Any] = {"tuning": tuning, "scheduling": scheduling}
    if random.random() < 0.7:
        spec["slo"] = {
            "itl": {"target": random.choice(("25ms", "60ms", "200ms"))},
            "ttft": {"target": random.choice(("500ms", "3s", "20s"))},
        }
    return spec


def _fault(random: Random, made: Trace) -> Callable[[Observation], Observation]:
    """Something that goes wrong for a few turns, now and then."""
    left, kind, crashes = 0, "", 0

    def change(seen: Observation) -> Observation:
        nonlocal left, kind, crashes
        if left == 0 and random.random() < 0.06 and not made.is_calm:
            left = random.randint(1, 8)
            kind = random.choice(("crash", "metrics", "rollout", "frozen", "paused", "scaling"))
            crashes += kind == "crash"
        left = max(0, left - 1)
        fleet = replace(seen.fleet, crashes=crashes)
        if left == 0 or made.is_calm:
            return replace(seen, fleet=fleet)
        match kind:
            case "metrics":
                return replace(seen, fleet=fleet, samples=(), lack_of_metrics="NoSeries")
            case "rollout":
                return replace(seen, fleet=replace(fleet, is_rolling_out=True))
            case "scaling":
                return replace(seen, fleet=replace(fleet, replicas=2))
            case "frozen":
                return replace(seen, fleet=fleet, is_frozen=True)
            case "paused":
                return replace(seen, fleet=fleet, is_paused=True)
        return replace(seen, fleet=fleet)

    return change

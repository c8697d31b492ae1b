"""Loads that show one symptom each, over the formula, and the manifest that is served."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_crds.spec import LLMDeploymentSpec
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing.surface import Load, Surface
from paceline_operator.testing.tuner_rig import TunerRig

TUNING: Mapping[str, Any] = {"minRequests": 500, "cooldown": "5m"}
ROOM: Mapping[str, Any] = {"bootMaxNumSeqs": 512, "bootMaxNumBatchedTokens": 4096}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One load.

    Attributes:
        spec: fields of the manifest beside its model.
        turns: the setting that cures it, "" where only a person can.
    """

    load: Load
    spec: Mapping[str, Any] = field(default_factory=dict)
    surface: Surface = field(default_factory=Surface)
    turns: str = ""


def spec_of(**fields: Any) -> LLMDeploymentSpec:
    """A manifest's spec."""
    body = {"model": {"uri": "demo"}, "tuning": TUNING, **fields}
    return LLMDeploymentSpec.model_validate_json(json.dumps(body))


def rig_of(scenario: Scenario, **fields: Any) -> TunerRig:
    """The scenario as a deployment; further fields of its spec."""
    spec = spec_of(**{**scenario.spec, **fields})
    return TunerRig(spec=spec, load=lambda _: scenario.load, surface=scenario.surface)


ROOMY = Surface(kv_tokens=1_000_000)
SCENARIOS: Mapping[Symptom, Scenario] = {
    Symptom.KV_PRESSURE: Scenario(
        load=Load(clients=128, prompt=1500, output=300),
        spec={"scheduling": ROOM},
        surface=Surface(kv_tokens=120_000),
        turns="maxNumSeqs",
    ),
    Symptom.SPIKY_STREAMS: Scenario(
        load=Load(rate=4, prompt=600, output=200, long_prompt=4000, long_share=0.2),
        spec={
            "objective": "Interactive",
            "slo": {"itl": {"target": "50ms"}, "ttft": {"target": "3s"}},
        },
        turns="longPrefillTokens",
    ),
    Symptom.SLOW_STREAMS: Scenario(
        load=Load(clients=128, prompt=100, output=200, long_share=0),
        spec={"slo": {"itl": {"target": "30ms"}, "ttft": {"target": "60s"}}},
        surface=ROOMY,
        turns="maxNumSeqs",
    ),
    Symptom.QUEUE_WAIT: Scenario(
        load=Load(clients=200, prompt=100, output=200, long_share=0),
        spec={"slo": {"ttft": {"target": "2s"}}, "scheduling": ROOM},
        surface=Surface(kv_tokens=60_000),
        turns="maxNumSeqs",
    ),
    Symptom.SLOW_PREFILL: Scenario(
        load=Load(rate=1, prompt=8000, output=40, long_prompt=9000, long_share=1),
        spec={
            "objective": "Interactive",
            "slo": {"ttft": {"target": "450ms"}, "itl": {"target": "500ms"}},
        },
        surface=Surface(kv_tokens=1_000_000, per_token_s=0.00003, base_s=0.04),
        turns="maxNumBatchedTokens",
    ),
    Symptom.CAP_TOO_LOW: Scenario(
        load=Load(clients=400, prompt=200, output=200),
        spec={"scheduling": ROOM},
        surface=ROOMY,
        turns="maxNumSeqs",
    ),
    Symptom.PREFIX_MISSES: Scenario(load=Load(rate=4, shared_heads=0.6, hits=0.05)),
    Symptom.SLOW_START: Scenario(load=Load(rate=4), surface=Surface(startup_s=900)),
    Symptom.HOST_BOUND: Scenario(
        load=Load(clients=60, output=200), surface=Surface(host_s=0.04, kv_tokens=1_000_000)
    ),
    Symptom.DEVICE_BOUND: Scenario(
        load=Load(clients=400, prompt=200, output=200),
        spec={"scheduling": {"maxNumSeqs": 128}},
        surface=Surface(kv_tokens=60_000),
    ),
}

"""Loads on simulated engines that show one symptom each, and what may be turned against it.

The machine is a formula for the time of a step (`MACHINE`): slow, so that hours of load are few
steps. Each scenario is small enough for CI; the oracle's sweep (`oracle`) uses the same ones.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.random import Generator, default_rng

from paceline_crds import resolve
from paceline_crds.settings import EngineSettings, border_names
from paceline_crds.spec import LLMDeploymentSpec
from paceline_engine.sim.arrivals import Arrivals, ClosedLoop, OpenLoop
from paceline_engine.sim.drafts import Drafts
from paceline_engine.sim.limits import limits_of
from paceline_engine.sim.requests import SimRequest, prompt
from paceline_engine.sim.simulator import Simulator
from paceline_engine.sim.step_cost import LinearCost, StepCost
from paceline_operator.decide.tuning.symptom import Symptom

MACHINE = LinearCost(step=60.0, prefill_token=0.3, decode_token=1.0)
"""Ten steps a second: a prompt of 100 tokens takes 90 ms, 40 decodes take 100."""
TUNING: Mapping[str, Any] = {"window": "10s", "minRequests": 200, "cooldown": "0s"}
Range = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What requests are like; lengths are drawn evenly from half-open ranges.

    Attributes:
        clients: users that wait for their answers; 0: `rate` requests a second come anyhow.
        long_share, long_prompt: share and lengths of long prompts.
        tail: lengths of long outputs; nobody says beforehand which those are.
        wave: so many long ones in a row, of so many requests; (0, 1): none.
        num_heads, head: shared beginnings of prompts, and their tokens.
    """

    prompt: Range
    output: Range
    clients: int = 0
    rate: float = 0.0
    long_share: float = 0.0
    long_prompt: Range = (0, 1)
    tail: Range = (0, 1)
    wave: Range = (0, 1)
    num_heads: int = 0
    head: int = 0

    def arrivals(self, rng: Generator) -> Arrivals:
        """An endless load."""
        requests = self.requests(rng)
        return ClosedLoop(requests, self.clients) if self.clients else OpenLoop(requests)

    def requests(self, rng: Generator, start_s: float = 0.0) -> Iterator[SimRequest]:
        """Without end, from a time on."""
        at_s, number = start_s, 0
        while True:
            if self.rate:
                at_s += float(rng.exponential(1 / self.rate))
            is_long = rng.random() < self.long_share
            length = int(rng.integers(*(self.long_prompt if is_long else self.prompt)))
            head: tuple[int, ...] = ()
            if self.num_heads:
                head = prompt((1 << 28) + int(rng.integers(self.num_heads)), self.head)
            is_tail = number % self.wave[1] < self.wave[0]
            yield SimRequest(
                arrival_s=at_s,
                prompt_token_ids=prompt(number, len(head) + length, head),
                num_output_tokens=int(rng.integers(*(self.tail if is_tail else self.output))),
                max_tokens=max(self.output[1], self.tail[1]),
            )
            number += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One load on one engine.

    Attributes:
        spec: of the manifest, beside its model.
        own: settings of the engine without a place in a manifest.
        turns: settings that cure it; none where only a person can.
        grid: camelCase names and the values that the oracle tries, the start values included.
        acceptance: chance that a draft holds, if the settings ask for drafts.
    """

    symptom: Symptom
    shape: Shape
    spec: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    turns: tuple[str, ...] = ()
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    machine: StepCost = MACHINE
    acceptance: float = 0.0
    host_ms: float = 0.0
    startup_s: float = 60.0

    def manifest(self, **changed: Any) -> LLMDeploymentSpec:
        """Its spec; fields can be given instead."""
        body = {"model": {"uri": "demo"}, "tuning": TUNING, **self.spec, **changed}
        return LLMDeploymentSpec.model_validate_json(json.dumps(body))

    def engine(
        self, seed: int = 1, *, arrivals: Arrivals | None = None, **settings: Any
    ) -> Simulator:
        """A simulated engine.

        Args:
            seed: of its load.
            arrivals: another load than the scenario's.
            settings: camelCase names, instead of the manifest's values.
        """
        base = resolve.settings_of(self.manifest())
        written = {name: getattr(base, name) for name in base.model_fields_set}
        given = {border_names()[name]: value for name, value in settings.items()}
        made = EngineSettings.model_validate({**written, **self.own, **given})
        return Simulator(
            made,
            limits_of(made),
            self.machine,
            arrivals or self.shape.arrivals(default_rng(seed)),
            drafts=Drafts(self.acceptance, default_rng(seed + 1)),
            host_ms=self.host_ms,
            startup_s={"load": self.startup_s},
        )


def _scheduling(**values: Any) -> dict[str, Any]:
    return {"scheduling": values}


_SCENARIOS = (
    Scenario(
        symptom=Symptom.KV_PRESSURE,
        # Long answers come in a row, as of a job in batches: after many short ones nobody expects
        # them, so all of them are let in and there are blocks for half.
        shape=Shape(clients=40, prompt=(10, 30), output=(2, 6), tail=(80, 96), wave=(64, 192)),
        spec={
            **_scheduling(maxNumSeqs=40, bootMaxNumSeqs=64, interTokenTargetMs=0, watermark="0.01"),
            "slo": {"itl": {"target": "200ms"}},
            "tuning": {**TUNING, "window": "30s", "bounds": {"maxNumSeqs": {"min": 8}}},
        },
        own={"num_kv_blocks": 128},
        machine=LinearCost(step=60.0, prefill_token=1.0, decode_token=1.0),
        turns=("maxNumSeqs",),
        grid={"maxNumSeqs": (40, 32, 25, 20, 16, 12)},
    ),
    Scenario(
        symptom=Symptom.SPECULATION_COSTS,
        shape=Shape(clients=80, prompt=(10, 30), output=(10, 20)),
        spec={
            "speculative": {"method": "Ngram", "numTokens": 4, "adaptive": False},
            "tuning": {**TUNING, "bounds": {"speculativeNumTokens": {"min": 0}}},
        },
        own={"num_kv_blocks": 2048, "boot_max_speculative_num_tokens": 4},
        turns=("speculativeNumTokens",),
        grid={"speculativeNumTokens": (4, 2, 1, 0)},
        acceptance=0.3,
    ),
    Scenario(
        symptom=Symptom.SPIKY_STREAMS,
        shape=Shape(
            rate=2.0, prompt=(5, 20), output=(8, 16), long_share=0.2, long_prompt=(600, 900)
        ),
        spec={
            **_scheduling(interTokenTargetMs=0, maxNumBatchedTokens=1024),
            "slo": {"itl": {"target": "150ms"}, "ttft": {"target": "5s"}},
            "tuning": {
                **TUNING,
                "minRequests": 100,
                "bounds": {"interTokenTargetMs": {"max": 150}},
            },
        },
        own={"num_kv_blocks": 2048},
        machine=LinearCost(step=60.0, prefill_token=0.6, decode_token=1.0),
        turns=("interTokenTargetMs",),
        grid={
            "longPrefillTokens": (512, 256, 128, 64),
            "interTokenTargetMs": (0, 150, 120, 96),
        },
    ),
    Scenario(
        symptom=Symptom.SLOW_STREAMS,
        shape=Shape(clients=64, prompt=(5, 60), output=(2, 24)),
        spec={
            **_scheduling(maxNumSeqs=64, interTokenTargetMs=0),
            "slo": {"itl": {"target": "160ms"}},
            "tuning": {**TUNING, "bounds": {"maxNumSeqs": {"min": 8}}},
        },
        own={"num_kv_blocks": 1024},
        turns=("maxNumSeqs",),
        grid={"maxNumSeqs": (64, 51, 40, 32, 25, 20, 16)},
    ),
    Scenario(
        symptom=Symptom.QUEUE_WAIT,
        shape=Shape(clients=60, prompt=(100, 200), output=(8, 16)),
        spec={
            **_scheduling(maxNumSeqs=16, bootMaxNumSeqs=64),
            "slo": {"ttft": {"target": "2600ms"}},
            "tuning": {**TUNING, "bounds": {"maxNumSeqs": {"max": 64}}},
        },
        own={"num_kv_blocks": 400},
        turns=("maxNumSeqs",),
        grid={"maxNumSeqs": (16, 20, 25, 31, 38, 47, 64)},
    ),
    Scenario(
        symptom=Symptom.SLOW_PREFILL,
        shape=Shape(rate=1.0, prompt=(150, 250), output=(2, 4)),
        spec={
            **_scheduling(maxNumBatchedTokens=64, bootMaxNumBatchedTokens=1024),
            "slo": {"ttft": {"target": "1s"}},
            "tuning": {
                **TUNING,
                "minRequests": 100,
                "bounds": {"maxNumBatchedTokens": {"max": 1024}},
            },
        },
        own={"num_kv_blocks": 1024},
        machine=LinearCost(step=150.0, prefill_token=0.3, decode_token=1.0),
        turns=("maxNumBatchedTokens",),
        grid={"maxNumBatchedTokens": (64, 128, 256, 512, 1024)},
    ),
    Scenario(
        symptom=Symptom.CAP_TOO_LOW,
        shape=Shape(clients=96, prompt=(20, 40), output=(8, 16)),
        spec={
            **_scheduling(maxNumSeqs=8, bootMaxNumSeqs=64),
            # Everybody waits and may: without a target that is met it were QueueWait.
            "slo": {"ttft": {"target": "30s"}},
            "tuning": {**TUNING, "bounds": {"maxNumSeqs": {"max": 64}}},
        },
        own={"num_kv_blocks": 1024},
        turns=("maxNumSeqs",),
        grid={"maxNumSeqs": (8, 16, 32, 64)},
    ),
    Scenario(
        symptom=Symptom.PREFIX_MISSES,
        shape=Shape(rate=4.0, prompt=(10, 20), output=(4, 8), num_heads=60, head=160),
        own={"num_kv_blocks": 120},
    ),
    Scenario(
        symptom=Symptom.SLOW_START,
        shape=Shape(rate=4.0, prompt=(10, 20), output=(4, 8)),
        own={"num_kv_blocks": 1024},
        startup_s=900.0,
    ),
    Scenario(
        symptom=Symptom.HOST_BOUND,
        shape=Shape(clients=8, prompt=(10, 20), output=(4, 8)),
        own={"num_kv_blocks": 1024},
        host_ms=55.0,
    ),
    Scenario(
        symptom=Symptom.DEVICE_BOUND,
        shape=Shape(clients=40, prompt=(10, 20), output=(8, 16)),
        spec=_scheduling(maxNumSeqs=20),
        own={"num_kv_blocks": 80},
        host_ms=0.5,
    ),
)

SCENARIOS: Mapping[Symptom, Scenario] = {item.symptom: item for item in _SCENARIOS}
"""One for each symptom."""

"""A diagnosis: symptoms that hold, each with a sentence, its evidence and the change to make."""

from random import Random
from typing import Any

import pytest

from paceline.tuner import diagnose
from paceline.tuner.diagnose import Diagnosis, Known
from paceline_operator.decide.tuning import policy
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.signals import Sample, Signal, Window
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing import surface as surfaces
from paceline_operator.testing.surface import Knobs
from paceline_operator.testing.tuner_scenarios import SCENARIOS, spec_of

VLLM = Known(settings={"maxNumSeqs": 256, "maxNumBatchedTokens": 2048}, is_paceline=False)


def samples(symptom: Symptom, rules: Policy, count: int = 3, seqs: float = 256) -> list[Sample]:
    scenario, random = SCENARIOS[symptom], Random(1)
    knobs = Knobs(seqs=seqs, budget=2048, long_cap=1024)
    found = surfaces.point(scenario.surface, knobs, scenario.load, rules)
    return [
        surfaces.sample(
            *(scenario.surface, found, scenario.load, rules),
            *(Window(start=at * 120, end=at * 120 + 120), ("a",), random),
        )
        for at in range(count)
    ]


def diagnosis(symptom: Symptom, known: Known, **options: Any) -> Diagnosis:
    rules = policy.of_spec(spec_of(**SCENARIOS[symptom].spec))
    return diagnose.of(samples(symptom, rules, **options), rules, known)


@pytest.mark.parametrize(
    ("symptom", "flag"),
    [
        (Symptom.KV_PRESSURE, "--watermark 0.04"),
        (Symptom.CAP_TOO_LOW, "--max-num-seqs 512"),
        (Symptom.DEVICE_BOUND, ""),
    ],
)
def test_a_vllm_fleet_is_told_a_sentence_the_manifests_line_and_its_own_flag(
    symptom: Symptom, flag: str
) -> None:
    seqs = 64 if symptom is Symptom.DEVICE_BOUND else 256
    known = Known(settings={**VLLM.settings, "maxNumSeqs": seqs}, is_paceline=False)
    if symptom is Symptom.KV_PRESSURE:
        known = Known(settings={**known.settings, "watermark": "0.01"}, is_paceline=False)
    found = diagnosis(symptom, known, seqs=seqs)
    (item,) = [item for item in found.recommendations if item.symptom == symptom.value]
    assert item.text.endswith(".")
    assert "nan" not in item.text
    assert item.change.startswith("spec.")
    assert item.flag == flag
    assert item.evidence


def test_what_is_not_known_is_not_guessed_but_listed() -> None:
    found = diagnosis(Symptom.CAP_TOO_LOW, Known(is_paceline=False))
    assert Symptom.CAP_TOO_LOW.value not in {item.symptom for item in found.recommendations}
    assert "maxNumSeqs" in found.not_evaluated[Symptom.CAP_TOO_LOW.value]


def test_a_manifest_says_what_is_pinned_and_how_far_a_setting_may_go() -> None:
    pinned = spec_of(scheduling={"maxNumSeqs": 256, "bootMaxNumSeqs": 512})
    found = diagnosis(Symptom.CAP_TOO_LOW, Known(spec=pinned, settings={"maxNumSeqs": 256}))
    (item,) = [item for item in found.recommendations if item.symptom == "CapTooLow"]
    assert "spec pins it" in item.text
    assert item.change == "spec.scheduling.maxNumSeqs: 512"


def test_two_windows_show_nothing_yet() -> None:
    found = diagnosis(Symptom.CAP_TOO_LOW, VLLM, count=2)
    assert (found.recommendations, found.num_windows) == ((), 2)


def test_windows_that_cannot_be_used_do_not_count() -> None:
    rules = Policy()
    broken = [
        Sample(window=item.window, pods=item.pods, values={**item.values, Signal.SCRAPES: 1})
        for item in samples(Symptom.CAP_TOO_LOW, rules)
    ]
    assert diagnose.of(broken, rules, VLLM).num_windows == 0

"""What may be turned at all, and how far."""

import pytest

from paceline_crds import resolve
from paceline_operator.decide.tuning import dials, moves, policy
from paceline_operator.decide.tuning.moves import Room
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing.tuner_scenarios import spec_of

NEVER_AUTOMATIC = {
    "model",
    "quantization",
    "image",
    "tensorParallelSize",
    "maxModelLen",
    "queueMaxRequests",
    "queueMaxTokens",
    "queueTimeoutS",
    "replicas",
    "dtype",
}


def made(**spec: object) -> dials.Dials:
    given = spec_of(**spec)
    base = resolve.resolve(given)
    return dials.of(given, base, base.settings, {})


@pytest.mark.parametrize("symptom", list(Symptom))
def test_no_symptom_prescribes_what_only_people_decide(symptom: Symptom) -> None:
    turned = made(slo={"itl": {"target": "50ms"}}, speculative={"method": "Ngram", "numTokens": 4})
    assert not NEVER_AUTOMATIC & set(turned)
    for usage in (0.1, 0.6, 0.99):
        rules = policy.of_spec(spec_of(slo={"itl": {"target": "50ms"}}))
        for move in moves.prescribed(symptom, turned, rules, Room(usage=usage, running=1.0)):
            assert turned[move.dial.name] is move.dial


def test_bounds_are_half_of_the_start_and_the_boot_maximum_where_spec_gives_none() -> None:
    found = made(scheduling={"bootMaxNumSeqs": 512})["maxNumSeqs"]
    assert (found.least, found.most) == (found.value / 2, 512)
    bounds = {"maxNumSeqs": {"min": 100, "max": 300}}
    wide = made(scheduling={"bootMaxNumSeqs": 512}, tuning={"bounds": bounds})["maxNumSeqs"]
    assert (wide.least, wide.most) == (100, 300)


def test_no_bound_of_spec_reaches_beyond_what_the_engine_planned_its_memory_for() -> None:
    given = spec_of(tuning={"bounds": {"maxNumSeqs": {"max": 5000}}})
    base = resolve.resolve(given)
    said = {"bootMaxNumSeqs": 512, "maxNumSeqs": 256}
    assert dials.of(given, base, base.settings, said)["maxNumSeqs"].most == 512


def test_a_type_of_the_cache_is_only_turned_to_what_spec_allows() -> None:
    assert made()["kvCacheDtype"].stuck is dials.Stuck.NOT_ALLOWED
    bounds = {"kvCacheDtype": {"allowed": ["FP8"]}}
    assert made(tuning={"bounds": bounds})["kvCacheDtype"].stuck is None

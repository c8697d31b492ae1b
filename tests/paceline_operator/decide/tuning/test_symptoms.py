import pytest

from paceline_operator.decide.tuning import symptoms
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.signals import Signal
from paceline_operator.decide.tuning.symptom import Finding, Symptom
from paceline_operator.testing.samples import AT_THE_EDGE, CAPS, HEALTHY, POLICY, SHOWS, sample

NONE: frozenset[Symptom] = frozenset()


def findings(changed: object, held: frozenset[Symptom] = NONE) -> dict[Symptom, Finding]:
    made = symptoms.evaluate(sample(changed), POLICY, CAPS, held)  # type: ignore[arg-type]
    return {item.symptom: item for item in made}


def test_order_is_that_of_the_design() -> None:
    order = [item.symptom for item in symptoms.evaluate(sample(), POLICY, CAPS)]
    assert order == list(Symptom)
    assert len(order) == 11


def test_healthy_window_shows_nothing_and_everything_is_evaluated() -> None:
    found = findings({})
    assert {item.is_shown for item in found.values()} == {False}


@pytest.mark.parametrize("symptom", list(Symptom))
def test_symptom_is_shown_by_its_load_with_figures(symptom: Symptom) -> None:
    found = findings(SHOWS[symptom])
    assert found[symptom].is_shown
    assert found[symptom].evidence


@pytest.mark.parametrize("symptom", list(Symptom))
def test_load_of_a_symptom_is_told_from_the_others(symptom: Symptom) -> None:
    shown = {name for name, item in findings(SHOWS[symptom]).items() if item.is_shown}
    assert shown == {symptom}


@pytest.mark.parametrize("symptom", list(Symptom))
def test_edge_is_not_enough_to_begin_and_enough_to_stay(symptom: Symptom) -> None:
    assert findings(AT_THE_EDGE[symptom])[symptom].is_shown is False
    assert findings(AT_THE_EDGE[symptom], frozenset({symptom}))[symptom].is_shown is True


@pytest.mark.parametrize("symptom", list(Symptom))
def test_symptom_that_was_held_goes_once_the_window_is_healthy(symptom: Symptom) -> None:
    assert findings({}, frozenset({symptom}))[symptom].is_shown is False


@pytest.mark.parametrize("symptom", list(Symptom))
def test_missing_signal_is_never_health(symptom: Symptom) -> None:
    lost = frozenset(SHOWS[symptom])
    made = symptoms.evaluate(sample(SHOWS[symptom], without=lost), POLICY, CAPS)
    found = next(item for item in made if item.symptom is symptom)
    assert found.is_shown is None
    assert found.lack


def test_without_targets_the_symptoms_that_need_one_are_not_evaluated() -> None:
    made = symptoms.evaluate(sample(), Policy(), CAPS)
    unknown = {item.symptom for item in made if item.is_shown is None}
    assert unknown == {Symptom.SPIKY_STREAMS, Symptom.SLOW_STREAMS, Symptom.SLOW_PREFILL}


def test_full_cache_without_preemption_is_healthy() -> None:
    assert not findings({Signal.KV_USAGE_P95: 1.0})[Symptom.KV_PRESSURE].is_shown


def test_spikes_of_preemption_are_not_blamed_on_long_prompts() -> None:
    found = findings({**SHOWS[Symptom.SPIKY_STREAMS], **SHOWS[Symptom.KV_PRESSURE]})
    assert not found[Symptom.SPIKY_STREAMS].is_shown
    assert found[Symptom.KV_PRESSURE].is_shown


def test_low_load_is_no_symptom() -> None:
    idle = {
        Signal.KV_USAGE_P95: 0.01,
        Signal.RUNNING: 0.5,
        Signal.FINISHED: 12,
        Signal.DEVICE_TIME: 1,
    }
    assert not any(item.is_shown for item in findings(idle).values())


def test_share_of_too_few_requests_is_not_evaluated() -> None:
    few = {Signal.FINISHED: 5, Signal.PREEMPTIONS: 1, Signal.KV_USAGE_P95: 1.0}
    assert findings(few)[Symptom.KV_PRESSURE].is_shown is None


def test_signals_of_the_healthy_window_are_complete() -> None:
    assert set(HEALTHY) == set(Signal)

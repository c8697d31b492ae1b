"""One simulated load for each symptom: shown, named, acted on, verified on the real scheduler."""

import pytest

from paceline.tuner.scenarios import SCENARIOS, TUNING
from paceline.tuner.simulated import SimulatedTuning
from paceline_operator.decide.tuning.state import Ended, Outcome, State
from paceline_operator.decide.tuning.symptom import Symptom

pytestmark = pytest.mark.slow

IN_EVERY_RUN = {Symptom.SPECULATION_COSTS, Symptom.SLOW_PREFILL, Symptom.SLOW_START}
"""Quick ones; the others are for `make test-full`."""


def marked(symptoms: list[Symptom]) -> list[object]:
    """Parameters, most of them for `make test-full`."""
    return [
        pytest.param(symptom, marks=() if symptom in IN_EVERY_RUN else pytest.mark.full)
        for symptom in symptoms
    ]


CURED = marked([symptom for symptom, scenario in SCENARIOS.items() if scenario.turns])
TOLD = marked([symptom for symptom, scenario in SCENARIOS.items() if not scenario.turns])


def tuning(symptom: Symptom, **spec: object) -> SimulatedTuning:
    scenario = SCENARIOS[symptom]
    return SimulatedTuning(spec=scenario.manifest(**spec), engine=scenario.engine())


def accepted(state: State) -> list[Ended]:
    return [item for item in state.history if item.outcome is Outcome.ACCEPTED]


def test_every_symptom_has_a_scenario() -> None:
    assert set(SCENARIOS) == set(Symptom)


def has_risen(state: State) -> bool:
    """Whether a change that stayed raised goodput; steps before it may only have come nearer."""
    return any(
        item.measured_after["goodput"] > 1.02 * item.measured_before["goodput"]
        for item in accepted(state)
    )


@pytest.mark.parametrize("symptom", CURED)
def test_a_symptom_is_named_a_setting_turned_and_goodput_rises(symptom: Symptom) -> None:
    rig = tuning(symptom)
    rig.run(600, stop=has_risen)
    assert symptom.value in rig.reasons()
    assert has_risen(rig.state)
    for kept in accepted(rig.state):
        assert kept.setting in SCENARIOS[symptom].turns
        assert kept.symptom is symptom
    overlay = {item.name: item.value for item in rig.state.overlay}
    assert str(rig.engine.settings.on_border()[kept.setting]) == overlay[kept.setting]
    rig.engine.check()


@pytest.mark.parametrize("symptom", TOLD)
def test_what_no_setting_cures_is_told_with_the_change_to_make(symptom: Symptom) -> None:
    rig = tuning(symptom)
    before = rig.engine.settings
    rig.run(120)
    assert symptom.value in rig.reasons()
    advice = {item.symptom: item for item in rig.state.advice}[symptom]
    assert advice.text.endswith(".")
    assert "nan" not in advice.text
    assert advice.change.startswith("spec.")
    assert rig.engine.settings == before


@pytest.mark.full
@pytest.mark.parametrize("mode", ["Observe", "Off"])
def test_without_leave_nothing_is_turned(mode: str) -> None:
    rig = tuning(Symptom.CAP_TOO_LOW, tuning={**TUNING, "mode": mode})
    before = rig.engine.settings
    rig.run(120)
    assert rig.engine.settings == before

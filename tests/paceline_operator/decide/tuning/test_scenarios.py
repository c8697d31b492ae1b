"""One scenario for each symptom: the load shows it, the tuner names it, acts, and goodput rises."""

import pytest

from paceline_operator.decide.tuning.state import Outcome
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing.tuner_scenarios import SCENARIOS, rig_of

CURED = [symptom for symptom, scenario in SCENARIOS.items() if scenario.turns]
TOLD = [symptom for symptom, scenario in SCENARIOS.items() if not scenario.turns]


@pytest.mark.parametrize("symptom", list(SCENARIOS))
def test_load_shows_the_symptom_and_the_tuner_names_it_with_figures(symptom: Symptom) -> None:
    rig = rig_of(SCENARIOS[symptom])
    state = rig.run(0.1)
    held = {item.symptom: item for item in state.symptoms if item.holds}
    assert symptom in held
    assert held[symptom].evidence
    assert symptom.value in {note.reason for note in rig.notes}


@pytest.mark.slow
@pytest.mark.parametrize("symptom", CURED)
def test_the_right_setting_is_turned_and_goodput_rises(symptom: Symptom) -> None:
    scenario = SCENARIOS[symptom]
    rig = rig_of(scenario)
    before = rig.goodput()
    state = rig.run(8)
    kept = [item for item in state.history if item.outcome is Outcome.ACCEPTED]
    assert scenario.turns in {item.setting for item in kept}
    assert {item.setting for item in kept} == {item.name for item in state.overlay}
    assert rig.goodput() > 1.03 * before
    for item in kept:
        assert item.reason
        assert item.measured_after["goodput"] > item.measured_before["goodput"]


@pytest.mark.parametrize("symptom", TOLD)
def test_what_only_a_person_can_do_is_said_in_a_sentence_with_the_manifests_change(
    symptom: Symptom,
) -> None:
    rig = rig_of(SCENARIOS[symptom])
    state = rig.run(1)
    advice = {item.symptom: item for item in state.advice}[symptom]
    assert advice.text.endswith(".")
    assert "nan" not in advice.text
    assert advice.change.startswith("spec.")
    assert not rig.in_force


def test_a_change_passes_all_its_phases_and_its_story_is_told() -> None:
    rig = rig_of(SCENARIOS[Symptom.CAP_TOO_LOW])
    phases: list[str] = []
    for _ in range(60):
        rig.turn()
        if rig.state.mood not in phases[-1:]:
            phases.append(rig.state.mood)
    assert phases[:5] == ["Watching", "Applying", "Settling", "Verifying", "Watching"]
    told = [note.reason for note in rig.notes if note.reason.startswith("Change")]
    assert told[:2] == ["ChangeStarted", "ChangeAccepted"]


def test_the_intent_is_written_before_any_engine_has_it() -> None:
    rig = rig_of(SCENARIOS[Symptom.CAP_TOO_LOW])
    while rig.state.mood != "Applying":
        rig.turn()
    assert rig.state.current is not None
    assert rig.state.overlay[0].value == rig.state.current.after
    assert rig.in_force == {}

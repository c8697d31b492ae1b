"""What a change is compared with: one load, the pods that are there, and not too long ago."""

from paceline_operator.decide.tuning.state import Outcome
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing.surface import Load
from paceline_operator.testing.tuner_rig import START
from paceline_operator.testing.tuner_scenarios import SCENARIOS, TUNING, rig_of


def test_a_load_that_came_after_the_baseline_is_measured_before_anything_is_turned() -> None:
    rig = rig_of(SCENARIOS[Symptom.CAP_TOO_LOW], tuning={**TUNING, "minRequests": 1200})
    light, heavy = Load(rate=4, prompt=200, output=200), Load(clients=400, prompt=400, output=1500)
    came = 720  # with the third window of the first load, which makes a baseline
    rig.load = lambda at: light if at < came else heavy
    while "ChangeStarted" not in [note.reason for note in rig.notes]:
        rig.turn()
    assert rig.state.current is not None
    assert rig.state.current.baseline.start >= START + came
    rig.run(1.5)
    assert rig.state.history[0].outcome is Outcome.ACCEPTED

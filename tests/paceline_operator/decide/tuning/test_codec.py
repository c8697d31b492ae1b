import json

import pytest

from paceline_crds.status_tuning import TuningStatus
from paceline_operator.decide.tuning import codec
from paceline_operator.decide.tuning.state import State
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing.tuner_scenarios import SCENARIOS, TUNING, rig_of
from paceline_operator.testing.tuner_traces import trace


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_every_state_of_a_trace_reads_back_as_it_was_written(seed: int) -> None:
    made = trace(seed, has_trouble=True)
    made.rig.serialises = lambda: False
    for _ in range(30):
        made.rig.turn()
        text = json.dumps(codec.encode(made.rig.state))
        TuningStatus.model_validate_json(text)
        assert codec.decode(json.loads(text)) == made.rig.state


def test_a_proposal_and_its_advice_read_back() -> None:
    rig = rig_of(SCENARIOS[Symptom.CAP_TOO_LOW], tuning={**TUNING, "mode": "Propose"})
    rig.serialises = lambda: False
    state = rig.run(0.5)
    assert state.current is not None
    assert state.advice
    assert codec.decode(codec.encode(state)) == state


@pytest.mark.parametrize(
    "broken", [None, {}, {"state": 7}, {"current": {"id": "x"}}, {"seenUntil": "never"}]
)
def test_what_cannot_be_read_is_a_lost_memory(broken: object) -> None:
    assert codec.decode(broken) == State()  # type: ignore[arg-type]


def test_an_empty_state_is_short() -> None:
    assert codec.encode(State()) == {"state": "Watching"}

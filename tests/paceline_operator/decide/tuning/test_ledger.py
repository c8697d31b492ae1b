"""The books of a day, each in a scenario in which they stop what the tuner would do without."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline_operator.decide.tuning import ledger
from paceline_operator.decide.tuning.observation import Observation
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.state import Change, Outcome, Phase, State
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing.surface import Load, Surface
from paceline_operator.testing.tuner_rig import TunerRig
from paceline_operator.testing.tuner_scenarios import ROOM, SCENARIOS, Scenario, rig_of

CAP = SCENARIOS[Symptom.CAP_TOO_LOW]
HOUR_S = 3600


def starts(rig: TunerRig) -> int:
    return sum(note.reason == "ChangeStarted" for note in rig.notes)


def made_by(rig: TunerRig, change: Callable[[Surface, float], Surface]) -> None:
    """Let the engine become another one whenever something is overlaid."""
    healthy = rig.surface

    def fault(seen: Observation) -> Observation:
        values = [float(value) for value in rig.in_force.values()]
        rig.surface = change(healthy, values[0]) if values else healthy
        return seen

    rig.fault = fault


def slowed(surface: Surface, _value: float) -> Surface:
    return replace(
        surface,
        base_s=surface.base_s * 1.5,
        per_seq_s=surface.per_seq_s * 1.5,
        per_token_s=surface.per_token_s * 1.5,
    )


@pytest.mark.slow
def test_the_fourth_change_of_a_day_that_took_three_back_is_only_proposed() -> None:
    """Loads so different that no tabu of one holds at the other."""
    rig = rig_of(CAP)
    made_by(rig, slowed)
    other = Load(clients=400, prompt=50, output=50)
    rig.load = lambda at: CAP.load if at < 3 * HOUR_S else other
    rig.run(3)
    assert [item.outcome for item in rig.state.history] == [Outcome.ROLLED_BACK] * 2
    state = rig.run(5)
    assert starts(rig) == 3
    assert state.spent.rollbacks == 3
    assert state.mood == "Proposed"
    assert rig.in_force == {}
    rig.run(9)
    assert starts(rig) > 3, "a new day has new books"


def of_restarts(**tuning: object) -> TunerRig:
    """A full cache that only a larger share of the memory cures, a step at a time."""
    scenario = Scenario(
        load=Load(clients=128, prompt=1500, output=300),
        spec={
            "scheduling": {
                **ROOM,
                "watermark": "0.01",
                "maxNumSeqs": 256,
                "maxNumBatchedTokens": 2048,
            },
            "kvCache": {"gpuMemoryUtilization": "0.84"},
            "tuning": {
                "minRequests": 500,
                "allowRestart": True,
                "bounds": {"gpuMemoryUtilization": {"min": "0.5", "max": "0.96"}},
                "maintenanceWindows": [{"name": "always", "start": "00:00", "duration": "24h"}],
                **tuning,
            },
        },
        surface=Surface(kv_tokens=60_000),
    )
    rig = rig_of(scenario)
    made_by(rig, lambda surface, value: replace(surface, kv_tokens=round(1e6 * (value - 0.78))))
    return rig


@pytest.mark.slow
def test_changes_that_replace_pods_are_six_hours_apart_and_two_a_day() -> None:
    patient = of_restarts()
    patient.run(5)
    assert [item.setting for item in patient.state.history] == ["gpuMemoryUtilization"]
    patient.run(3)
    assert [item.outcome for item in patient.state.history] == [Outcome.ACCEPTED] * 2
    hasty = of_restarts(cooldown="0s")
    hasty.run(12)
    assert starts(hasty) == 2
    hasty.run(6)
    assert starts(hasty) == 4, "a new day has new books"


@pytest.mark.slow
def test_pods_are_only_replaced_where_allowed_and_in_a_window() -> None:
    monday = [{"name": "short", "start": "00:00", "duration": "1m", "days": ["Monday"]}]
    for rig in (of_restarts(maintenanceWindows=monday), of_restarts(allowRestart=False)):
        state = rig.run(1)
        assert starts(rig) == 0
        held = {item.symptom for item in state.symptoms if item.holds}
        assert Symptom.KV_PRESSURE in held, "there is something to be cured"


def kept(state: State, before: int, after: int) -> State:
    change = Change(
        id=f"maxNumSeqs-{after}-1",
        setting="maxNumSeqs",
        before=str(before),
        after=str(after),
        symptom=Symptom.KV_PRESSURE,
        phase=Phase.VERIFYING,
        started=0,
        phase_since=0,
    )
    return ledger.accepted(state, change, "", Policy(), 1000)


def test_a_kept_change_that_goes_back_is_a_reversal_and_one_that_goes_on_is_none() -> None:
    state = kept(kept(State(), 128, 256), 256, 512)
    assert state.spent.reversals == 0
    state = kept(kept(state, 512, 400), 400, 300)
    assert state.spent.reversals == 1
    assert kept(state, 300, 320).spent.reversals == 2

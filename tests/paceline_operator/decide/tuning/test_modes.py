"""Off, Observe, Propose, Auto, and what a person writes into annotations."""

from dataclasses import replace

from paceline_crds.spec_tuning import TuningMode
from paceline_crds.status_tuning import Direction
from paceline_operator.decide.tuning.observation import Observation
from paceline_operator.decide.tuning.state import Ban, Mood, Outcome
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing.tuner_rig import TunerRig
from paceline_operator.testing.tuner_scenarios import SCENARIOS, TUNING, rig_of

CAP = SCENARIOS[Symptom.CAP_TOO_LOW]


def rig_in(mode: str) -> TunerRig:
    return rig_of(CAP, tuning={**TUNING, "mode": mode})


def switched(mode: TuningMode) -> object:
    return lambda seen: replace(seen, policy=replace(seen.policy, mode=mode))


def test_observe_shows_symptoms_and_advice_and_turns_nothing() -> None:
    rig = rig_in("Observe")
    state = rig.run(1)
    assert Symptom.CAP_TOO_LOW in {item.symptom for item in state.symptoms if item.holds}
    assert any("spec.scheduling.maxNumSeqs: 256" in item.change for item in state.advice)
    assert rig.in_force == {}
    assert state.current is None


def test_propose_waits_with_a_proposal_that_names_what_to_approve() -> None:
    rig = rig_in("Propose")
    state = rig.run(1)
    assert state.mood == "Proposed"
    assert state.current is not None
    assert state.current.baseline.windows
    assert rig.in_force == {}
    told = [note.asks_for for note in rig.notes if note.reason == "ChangeProposed"]
    assert told == [state.current.id]


def test_an_approved_proposal_is_applied_and_verified() -> None:
    rig = rig_in("Propose")
    state = rig.run(1)
    assert state.current is not None
    wanted = state.current.id
    rig.fault = lambda seen: replace(seen, approve=wanted)
    rig.run(0.7)
    assert rig.state.history[-1].id == wanted
    assert rig.state.history[-1].outcome is Outcome.ACCEPTED
    assert "maxNumSeqs" in rig.in_force


def test_an_approval_of_another_id_does_nothing() -> None:
    rig = rig_in("Propose")
    rig.fault = lambda seen: replace(seen, approve="maxNumSeqs-256-99")
    rig.run(1)
    assert rig.in_force == {}


def test_a_rejection_of_another_id_does_nothing() -> None:
    rig = rig_in("Propose")
    rig.fault = lambda seen: replace(seen, reject="maxNumSeqs-256-99")
    state = rig.run(1)
    assert (state.mood, state.history) == ("Proposed", ())


def test_an_approved_proposal_waits_for_what_stops_every_change() -> None:
    rig = rig_in("Propose")
    state = rig.run(1)
    assert state.current is not None
    wanted = state.current.id

    def rolling_out(seen: Observation, approve: str = "") -> Observation:
        fleet = replace(seen.fleet, is_rolling_out=True)
        return replace(seen, fleet=fleet, approve=approve)

    rig.fault = rolling_out
    assert rig.run(0.1).reason == "RollingOut"
    rig.fault = lambda seen: rolling_out(seen, wanted)
    assert rig.run(0.1).reason == "RollingOut"
    assert (rig.state.mood, rig.in_force) == ("Proposed", {})
    rig.fault = lambda seen: replace(seen, approve=wanted)
    rig.run(0.5)
    assert "maxNumSeqs" in rig.in_force


def test_observe_withdraws_what_was_proposed() -> None:
    rig = rig_in("Propose")
    rig.run(1)
    rig.fault = lambda seen: replace(seen, policy=replace(seen.policy, mode=TuningMode.OBSERVE))
    state = rig.run(0.1)
    assert state.current is None
    assert "ProposalWithdrawn" in [note.reason for note in rig.notes]


def test_a_rejected_proposal_is_not_made_again_for_a_day() -> None:
    rig = rig_in("Propose")
    state = rig.run(1)
    assert state.current is not None
    wanted = state.current
    rig.fault = lambda seen: replace(seen, reject=wanted.id)
    rig.run(2)
    assert rig.state.history[-1].outcome is Outcome.REJECTED
    current = rig.state.current
    assert current is None or current.setting != wanted.setting


def test_a_proposal_goes_with_its_symptom() -> None:
    rig = rig_in("Propose")
    rig.run(1)
    rig.load = lambda _: replace(CAP.load, clients=20)
    state = rig.run(0.5)
    assert state.current is None
    assert "ProposalWithdrawn" in [note.reason for note in rig.notes]


def test_off_takes_the_overlay_away_and_remembers_what_failed() -> None:
    rig = rig_in("Auto")
    rig.run(1)
    assert rig.in_force
    failed = Ban(
        setting="watermark", direction=Direction.UP, load_bin="r8-p9-o7", until=rig.now, failures=1
    )
    rig._state = replace(rig.state, bans=(failed,))
    rig.fault = lambda seen: replace(seen, policy=replace(seen.policy, mode=TuningMode.OFF))
    state = rig.run(0.1)
    assert state.mood == Mood.OFF
    assert state.overlay == ()
    assert rig.in_force == {}
    assert state.history
    assert state.bans == (failed,)


def test_observe_and_propose_keep_what_was_accepted_and_take_back_what_is_in_flight() -> None:
    for mode in (TuningMode.OBSERVE, TuningMode.PROPOSE):
        rig = rig_in("Auto")
        while not (rig.state.mood == "Verifying" and rig.state.history):
            rig.turn()
        accepted = rig.state.history[-1].after

        def switch(seen: Observation, mode: TuningMode = mode) -> Observation:
            return replace(seen, policy=replace(seen.policy, mode=mode))

        rig.fault = switch
        rig.run(0.1)
        assert rig.state.history[-1].outcome is Outcome.ROLLED_BACK
        assert rig.in_force["maxNumSeqs"] == accepted


def test_a_change_whose_setting_spec_decides_now_has_ended() -> None:
    rig = rig_in("Auto")
    while rig.state.mood != "Verifying":
        rig.turn()
    rig.fault = lambda seen: replace(seen, overlay_kept=frozenset())
    rig.turn()
    assert rig.state.history[-1].outcome is Outcome.SUPERSEDED
    assert rig.state.overlay == ()

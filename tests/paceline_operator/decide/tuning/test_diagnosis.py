"""The next change: the first symptom's first move that may be made and contradicts no other."""

from dataclasses import replace

import pytest

from paceline_crds import resolve
from paceline_crds.status_tuning import Direction
from paceline_operator.decide.tuning import arm as arms
from paceline_operator.decide.tuning import diagnosis, dials, load, policy
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.diagnosis import Obstacle
from paceline_operator.decide.tuning.observation import Observation
from paceline_operator.decide.tuning.signals import Signal
from paceline_operator.decide.tuning.state import Ban, State
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.decide.tuning.watch import Seen
from paceline_operator.testing.samples import sample
from paceline_operator.testing.tuner_scenarios import ROOM, spec_of

NOW = sample().window.end


def seen(**spec: object) -> Observation:
    given = spec_of(scheduling=ROOM, **spec)
    base = resolve.resolve(given)
    return Observation(policy=policy.of_spec(given), dials=dials.of(given, base, base.settings, {}))


def state(*symptoms: Symptom, **signals: float) -> State:
    changed = {Signal(name): value for name, value in signals.items()}
    baseline = arms.extended(Arm(), sample(changed), has_targets=True)
    held = tuple(Seen(symptom=symptom, since=NOW, shown=3) for symptom in symptoms)
    return replace(State(), symptoms=held, baseline=baseline)


SLOW = {"itl": {"target": "50ms"}}


def test_what_one_symptom_wants_down_no_other_turns_up() -> None:
    both = state(Symptom.SLOW_STREAMS, Symptom.CAP_TOO_LOW, kvUsageP95=0.2)
    ban = Ban(
        setting="maxNumSeqs",
        direction=Direction.DOWN,
        load_bin=load.bin_of(both.baseline),
        until=NOW + 3600,
        failures=1,
    )
    found = diagnosis.choose(replace(both, bans=(ban,)), seen(slo=SLOW), NOW)
    why = {move.dial.name: why for move, why in found.obstacles[Symptom.CAP_TOO_LOW]}
    assert why["maxNumSeqs"] == Obstacle.CONTRADICTS
    assert found.change is None or found.change.setting != "maxNumSeqs"


@pytest.mark.parametrize("symptom", [Symptom.QUEUE_WAIT, Symptom.CAP_TOO_LOW])
def test_no_more_are_let_in_while_streams_miss_their_target(symptom: Symptom) -> None:
    within, missed = {"itlWithin": 600.0}, {"itlWithin": 500.0}
    for signals, is_turned in ((within, True), (missed, False)):
        one = state(symptom, kvUsageP95=0.2, **signals)
        found = diagnosis.choose(one, seen(slo=SLOW), NOW)
        assert (found.change is not None) is is_turned


def test_who_waits_for_a_full_cache_is_not_let_in() -> None:
    for usage, is_turned in ((0.5, True), (0.9, False)):
        one = state(Symptom.QUEUE_WAIT, kvUsageP95=usage)
        assert (diagnosis.choose(one, seen(), NOW).change is not None) is is_turned

"""Steps of single settings: where they begin, how far they go, and which way they went."""

import math
from typing import Any

import pytest

from paceline_crds import resolve
from paceline_crds.status_tuning import Direction
from paceline_operator.decide.tuning import dials, moves, policy
from paceline_operator.decide.tuning.moves import Move, Room
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing.tuner_scenarios import TUNING, spec_of

SLO = {"itl": {"target": "150ms"}}


def move(
    setting: str,
    symptom: Symptom = Symptom.SPIKY_STREAMS,
    room: Room = Room(usage=0.5),  # noqa: B008 - frozen
    **spec: Any,
) -> Move:
    made = spec_of(slo=SLO, **spec)
    base = resolve.resolve(made)
    turned = dials.of(made, base, base.settings, {})
    found = moves.prescribed(symptom, turned, policy.of_spec(made), room)
    return next(item for item in found if item.dial.name == setting)


def test_a_target_of_a_step_that_follows_the_streams_target_is_made_tighter() -> None:
    found = move("interTokenTargetMs")
    assert (found.before, found.after) == ("150", "120")
    assert not found.is_at_bound


def test_a_target_of_a_step_that_is_off_is_turned_on_below_the_streams_target() -> None:
    bounds = {"interTokenTargetMs": {"max": 150}}
    off = {"scheduling": {"interTokenTargetMs": 0}}
    found = move("interTokenTargetMs", **off, tuning={**TUNING, "bounds": bounds})
    assert (found.before, found.after) == ("0", "120")
    assert found.dial.stuck is None
    assert not found.is_at_bound


def test_a_target_of_a_step_does_not_go_below_half_of_the_streams_target() -> None:
    bounds = {"interTokenTargetMs": {"max": 150}}
    least = {"scheduling": {"interTokenTargetMs": 75}}
    assert move("interTokenTargetMs", **least, tuning={**TUNING, "bounds": bounds}).is_at_bound


@pytest.mark.parametrize(
    ("running", "after"), [(math.inf, "32"), (39.0, "32"), (21.6, "21"), (0.2, "20")]
)
def test_a_full_cache_gets_a_cap_that_binds(running: float, after: str) -> None:
    """No more than run on average; not below half of where it started, without other bounds."""
    room = Room(usage=0.99, running=running)
    seats = {"maxNumSeqs": 40, "bootMaxNumSeqs": 64}
    found = move("maxNumSeqs", Symptom.KV_PRESSURE, room, scheduling=seats)
    assert (found.before, found.after) == ("40", after)


@pytest.mark.parametrize(
    ("setting", "before", "after", "direction"),
    [
        ("maxNumSeqs", "64", "80", Direction.UP),
        ("maxNumSeqs", "64", "51", Direction.DOWN),
        ("speculativeNumTokens", "1", "0", Direction.DOWN),
        ("interTokenTargetMs", "0", "150", Direction.DOWN),
        ("longPrefillTokens", "0", "512", Direction.DOWN),
        ("longPrefillTokens", "512", "0", Direction.UP),
        ("kvCacheDtype", "Auto", "FP8", Direction.DOWN),
    ],
)
def test_a_limit_that_is_turned_on_went_down(
    setting: str, before: str, after: str, direction: Direction
) -> None:
    assert moves.direction_of(setting, before, after) is direction

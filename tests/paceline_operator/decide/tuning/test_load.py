import pytest

from paceline_operator.decide.tuning import arm as arms
from paceline_operator.decide.tuning import load
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.signals import Signal
from paceline_operator.testing.samples import sample

S = Signal


def of(**changed: float) -> Arm:
    values = {Signal(name): value for name, value in changed.items()}
    return arms.extended(Arm(), sample(values), has_targets=True)


def test_the_same_load_is_equal_and_its_demand_is_one() -> None:
    found = load.compare(of(), of())
    assert found.is_equal
    assert found.demand == 1


@pytest.mark.parametrize(
    ("changed", "worst"),
    [
        ({"promptLength": 600.0}, "promptLength"),
        ({"outputLength": 70.0}, "outputLength"),
        ({"finished": 900.0, "running": 45.0}, "demand"),
    ],
)
def test_each_component_may_differ_by_fifteen_percent(
    changed: dict[str, float], worst: str
) -> None:
    found = load.compare(of(), of(**changed))
    assert not found.is_equal
    assert found.worst == worst


def test_users_that_wait_for_answers_are_the_same_load_at_a_higher_rate() -> None:
    faster = load.compare(of(), of(finished=900.0))
    assert faster.is_equal
    assert faster.demand == 1


def test_users_that_come_on_their_own_are_the_same_load_with_fewer_at_a_time() -> None:
    shorter = load.compare(of(), of(running=10.0))
    assert shorter.is_equal
    assert shorter.demand == 1


def test_the_same_load_on_twice_as_many_pods_is_twice_as_much() -> None:
    twice = {Signal.FINISHED: 2 * sample().values[Signal.FINISHED]}
    fleet = arms.extended(Arm(), sample(twice, pods=("a", "b")), has_targets=True)
    found = load.compare(of(), fleet)
    assert (found.is_equal, found.demand) == (True, 1)
    assert load.bin_of(fleet) == load.bin_of(of())
    halved = arms.extended(Arm(), sample(pods=("a", "b")), has_targets=True)
    assert load.bin_of(halved) != load.bin_of(of())


def test_bins_are_powers_of_two_and_neighbours_are_near() -> None:
    assert load.bin_of(of()) == "r8-p9-o7"
    assert load.are_near("r8-p9-o7", "r9-p8-o7")
    assert not load.are_near("r8-p9-o7", "r10-p9-o7")
    assert load.bin_of(Arm()) == "r0-p0-o0"

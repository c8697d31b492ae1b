"""What a plan does for a deployment of which nothing is there yet: children, then one status."""

from dataclasses import replace
from typing import Any

import pytest

from paceline_operator.decide import children
from paceline_operator.decide import plan as planning
from paceline_operator.decide.actions import Apply, Event, WriteStatus
from paceline_operator.decide.observed import WriteFailure
from paceline_operator.testing.world import World
from paceline_operator.testing.worlds import spec_of


def test_what_is_new_gets_its_children_and_then_the_status_that_says_so() -> None:
    world = World(spec_of())
    kinds = [type(action) for action in world.plan().actions]
    assert kinds[-2:] == [WriteStatus, Event]
    assert set(kinds[:-2]) == {Apply}
    world.reconcile(at_most=kinds.index(WriteStatus))  # killed before it says so
    assert not world.status
    world.reconcile(at_most=1)
    assert world.condition("Ready") == ("False", "PodsNotReady")


@pytest.mark.parametrize("spec", [{"paused": True}, {"tensorParallelSize": 2}])
def test_what_is_new_and_gets_no_child_is_told_so_at_once(spec: dict[str, Any]) -> None:
    assert isinstance(World(spec_of(**spec)).plan().actions[0], WriteStatus)


def test_a_new_one_whose_child_is_refused_gets_no_status_that_says_it_is_there() -> None:
    world = World(spec_of())
    applies = [action for action in world.plan().actions if isinstance(action, Apply)]
    ending = {action.manifest["kind"] for action in applies if action.stops_plan}
    assert ending >= children.NEEDED_KINDS


def test_what_is_new_and_was_refused_a_child_is_told_so_before_the_next_try() -> None:
    failure = WriteFailure(
        action="Apply", target="Service/demo", code=403, reason="Forbidden", message="no", times=1
    )
    world = World(spec_of())
    observed = replace(world.observe(), failures=(failure,))
    assert isinstance(planning.plan(observed, world.now).actions[0], WriteStatus)


def test_one_that_was_killed_amid_the_first_children_is_told_so_before_the_others() -> None:
    world = World(spec_of())
    world.reconcile(at_most=1)
    kinds = [type(action) for action in world.plan().actions]
    assert (kinds[0], kinds[-1]) == (WriteStatus, Apply)

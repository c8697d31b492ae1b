"""The whole shell over a cluster in memory: killed anywhere, lied to by watches, it converges."""

from pathlib import Path
from typing import Any

import pytest

from paceline_operator.resources import objects
from paceline_operator.testing import rig as rigs
from paceline_operator.testing.api import Fault, Request
from paceline_operator.testing.rig import NetworkedWorld, Rig

MODEL = {"uri": "demo", "servedName": "demo"}
FIRST: dict[str, Any] = {"model": MODEL, "scheduling": {"maxNumSeqs": 4, "bootMaxNumSeqs": 16}}
LIVE = {**FIRST, "scheduling": {"maxNumSeqs": 8, "bootMaxNumSeqs": 16}}
ROLLED = {**LIVE, "maxModelLen": 256}
SCALED = {**ROLLED, "replicas": 3}
LIFE = (FIRST, LIVE, ROLLED, SCALED, FIRST)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text("k" * 32)
    return file


def live_through(rig: Rig) -> dict[str, Any]:
    """Play the scripted life; returns its end state before the deletion."""
    for spec in LIFE:
        rig.world.edit(spec)
        rig.settle()
    end = rig.world.shape()
    rig.world.delete()
    rig.world.store.collect_garbage()
    rig.settle()
    left = {kind for kind, _ in rig.world.store.objects}
    assert not left, left
    return end


def make(key_file: Path, **options: Any) -> Rig:
    return Rig(NetworkedWorld(FIRST), key_file, **options)


@pytest.fixture
def undisturbed(key_file: Path) -> tuple[dict[str, Any], int]:
    """End state of an undisturbed life, and how many writes it took."""
    rig = make(key_file)
    return live_through(rig), rig.num_writes


@pytest.mark.slow
def test_a_life_ends_in_the_same_state_whatever_watches_lose_or_repeat(
    key_file: Path, undisturbed: tuple[dict[str, Any], int]
) -> None:
    for seed in range(3):
        assert live_through(make(key_file, deliver=rigs.unreliable(seed))) == undisturbed[0]


@pytest.mark.slow
@pytest.mark.parametrize("dies_after", [False, True], ids=["before", "after"])
def test_an_operator_killed_at_a_write_goes_on_where_it_was(
    key_file: Path, undisturbed: tuple[dict[str, Any], int], dies_after: bool
) -> None:
    end, num_writes = undisturbed
    for number in range(1, num_writes, 11):
        rig = make(key_file, dies_at=number, dies_after=dies_after)
        assert live_through(rig) == end, number
        assert rig.num_deaths == 1


@pytest.mark.full
@pytest.mark.parametrize("dies_after", [False, True], ids=["before", "after"])
def test_an_operator_killed_at_every_write_goes_on_where_it_was(
    key_file: Path, undisturbed: tuple[dict[str, Any], int], dies_after: bool
) -> None:
    end, num_writes = undisturbed
    for number in range(1, num_writes + 1):
        assert live_through(make(key_file, dies_at=number, dies_after=dies_after)) == end, number


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.LOSE, Fault.LOSE_ANSWER, Fault.CONFLICT])
def test_a_life_survives_writes_that_fail(
    key_file: Path, undisturbed: tuple[dict[str, Any], int], fault: Fault
) -> None:
    rig = make(key_file)
    count = 0

    def every_third(request: Request) -> Fault | None:
        nonlocal count
        count += request.is_write
        return fault if request.is_write and count % 3 == 0 else None

    rig.api.faults = every_third
    assert live_through(rig) == undisturbed[0]


@pytest.mark.slow
def test_a_second_look_writes_nothing(key_file: Path) -> None:
    rig = make(key_file)
    rig.settle()
    before = rig.num_writes
    rig.reconcile()
    rig.reconcile()
    assert rig.num_writes == before


@pytest.mark.slow
def test_a_write_that_is_forbidden_again_becomes_a_condition_and_heals(key_file: Path) -> None:
    rig = make(key_file)
    rig.api.faults = lambda request: (
        Fault.FORBID if request.method == "PATCH" and "/services/" in request.path else None
    )
    rig.settle()
    assert rig.world.condition("Degraded") == ("True", "WriteRefused")
    told = objects.condition(rig.world.document, "Degraded")["message"]
    assert "Service/demo" in told
    rig.api.faults = lambda _: None
    rig.settle()
    assert rig.world.condition("Degraded")[0] == "False"
    assert rig.world.condition("Ready")[0] == "True"


def test_lists_that_expire_are_asked_for_again(key_file: Path) -> None:
    rig = make(key_file, deliver=lambda _: 0)
    rig.api.faults = lambda request: Fault.EXPIRE if request.method == "GET" else None
    rig.reconcile()
    assert rig.num_writes == 0
    rig.api.faults = lambda _: None
    rig.settle()
    assert rig.world.condition("Ready")[0] == "True"


def put_theirs(rig: Rig, kind: str, api_version: str) -> dict[str, Any]:
    """An object of somebody else under a name that the operator wants."""
    uid, version = rig.world.store.stamp()
    metadata = {"name": "demo", "namespace": "models", "uid": uid, "resourceVersion": version}
    theirs = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata,
        "spec": {"selector": {"app": "theirs"}},
    }
    rig.world.store.objects[kind, "demo"] = theirs
    return theirs


def test_a_service_of_somebody_else_is_left_alone_and_told_about(key_file: Path) -> None:
    rig = make(key_file)
    theirs = put_theirs(rig, "Service", "v1")
    rig.settle()
    assert theirs["spec"] == {"selector": {"app": "theirs"}}
    assert rig.world.condition("Degraded") == ("True", "ChildConflict")
    told = objects.condition(rig.world.document, "Degraded")["message"]
    assert "Service demo is there already" in told
    assert "paceline.dev/deployment=demo" in told
    rig.world.edit({**FIRST, "replicas": 0})
    rig.settle()
    assert rig.world.condition("Ready") == ("False", "ChildConflict"), "not ready without it"
    del rig.world.store.objects["Service", "demo"]
    rig.settle()
    assert rig.world.condition("Ready") == ("True", "ScaledToZero")


def test_a_policy_of_somebody_else_is_told_about_and_holds_nothing_up(key_file: Path) -> None:
    rig = make(key_file)
    theirs = put_theirs(rig, "NetworkPolicy", "networking.k8s.io/v1")
    rig.settle()
    assert theirs["spec"] == {"selector": {"app": "theirs"}}
    assert rig.world.condition("Degraded") == ("True", "ChildConflict")
    assert rig.world.condition("Ready") == ("True", "AllPodsReady")
